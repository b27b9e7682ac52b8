"""Charts of a page: what they show (`spec`), on which scales, and their drawing as inline SVG.

Nothing here needs matplotlib or jinja2: pages of any layer can have them. The same `Chart` is drawn for files by
`servecast.report.plots.charted`.
"""

from servecast.report.charts.figure import figure
from servecast.report.charts.spec import Area, Axis, Bar, Bars, Chart, Datum, Line, Marks, Panel, Part, Series

__all__ = ["Area", "Axis", "Bar", "Bars", "Chart", "Datum", "Line", "Marks", "Panel", "Part", "Series", "figure"]
