"""Charts: what they show (`spec`), on which scales, and their one drawing as SVG, for pages and for files.

This is servecast's own SVG and no plotting library: a page with some ten charts is about 0.5 MB (a script that draws,
such as Vega-Lite's, alone is more), needs no network and no script, prints, and has tooltips for mouse, finger and
keyboard; the same drawing with its style inside is the figure file.
"""
