"""The kinds of layer that a decoder is made of: what they hold, what they cache, what a step costs in them.

A layer is *mixers*, which let tokens see each other (attention, latent attention, a recurrence with a fixed state; none
or several side by side), and a *feed-forward* (dense, experts, none). Each part answers for one layer on one GPU of a
tensor-parallel `Split`; `servecast.specs.model` sums over groups of equal layers.
"""
