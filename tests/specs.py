"""Models of tests: a shipped one with another kind of layer, or another number of them."""

from dataclasses import replace

from servecast.specs.layers.layer import LayerGroup


def remade(spec, layers=None, feed_forward=None, **attention):
    """A model of one kind of layer with changed attention, changed feed-forward, or another number of layers."""
    [group] = spec.groups
    layer = replace(
        group.layer,
        mixers=tuple(replace(mixer, **attention) for mixer in group.layer.mixers),
        feed_forward=replace(group.layer.feed_forward, **(feed_forward or {})),
    )
    return replace(spec, groups=(LayerGroup(layers or group.layers, layer),))


def kinds(model):
    """(layers, window, whether it routes to experts) of each group of layers."""
    groups = ((group.layers, group.layer) for group in model.groups)
    return [(layers, layer.mixers[0].window, hasattr(layer.feed_forward, "total")) for layers, layer in groups]
