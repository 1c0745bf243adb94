"""Plots of statistics as SVG drawn by Vega-Lite: no script, no network, colours by the page's style sheet.

Each plot is drawn twice, for wide and for narrow columns; the style sheet shows one of them.
"""

from __future__ import annotations

import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pileshard.errors import MissingExtraError

SVG = "http://www.w3.org/2000/svg"


class Variant(NamedTuple):
    """A column that a drawing is made for: its width in CSS pixels, and how many letters of a name it shows."""

    name: str
    width: int
    letters: int


VARIANTS = (Variant("wide", 600, 26), Variant("narrow", 340, 16))

INK, MUTED, GRID = "var(--ink)", "var(--muted)", "var(--grid)"
FIRST, SECOND, PAPER = "var(--first)", "var(--second)", "var(--paper)"

#: Rows of a plot by source or by input; what is beyond stands in the table.
MOST_ROWS = 25
_ROW = 20

# The page is drawn in whatever font its reader has: room for the widest common one.
_NAME_LETTER, _LABEL_LETTER = 7.0, 6.8

Spec = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A row of a plot by name.

    Attributes:
      name: shown, cut to what fits.
      values: of the row's marks.
    """

    name: str
    values: dict[str, Any]


def need_plots() -> Any:
    """The package that draws.

    Raises:
      MissingExtraError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError("vl-convert-python", "stats", "pileshard stats --html") from None
    return vl_convert


def draw(title: str, make: Callable[[Variant], Spec]) -> str:
    """Both drawings of a plot as one piece of HTML.

    Args:
      title: of the plot, for who cannot see it.
      make: gives the specification for a column.

    Raises:
      MissingExtraError: the package that draws is not installed.
    """
    vl_convert = need_plots()
    out = []
    for variant in VARIANTS:
        spec = {
            "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
            "width": variant.width,
            "autosize": {"type": "fit-x", "contains": "padding"},
            "config": _CONFIG,
            **make(variant),
        }
        svg = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
        out.append(_finish(svg, title, variant.name))
    return "".join(out)


def letters(text: str) -> float:
    """How wide a text is, in letters of a common width."""

    def width(c: str) -> float:
        if unicodedata.combining(c):
            return 0
        return 2 if unicodedata.east_asian_width(c) in "WF" else 1.7 if c in "WMm@" else 1.4 if c in "w%" else 1

    return sum(map(width, text))


def cut(text: str, most: int) -> str:
    """A text of at most so many letters, with an ellipsis where it was longer."""
    if letters(text) <= most:
        return text
    while letters(text) > most - 1:
        text = text[:-1]
    return text + "…"


def names(rows: Sequence[Row], variant: Variant) -> list[Spec]:
    """The rows as data: `row` is a name cut to fit, no two the same, in the order given."""
    seen: dict[str, int] = {}
    out = []
    for row in rows:
        short = cut(row.name, variant.letters)
        seen[short] = again = seen.get(short, 0) + 1
        label = short if again == 1 else f"{cut(row.name, variant.letters - 4)} ({again})"
        out.append({"row": label, "name": row.name, **row.values})
    return out


def y_rows(data: Sequence[Spec]) -> Spec:
    """The vertical axis of rows, in the order of the data."""
    order = list(dict.fromkeys(entry["row"] for entry in data))
    axis: Spec = {"title": None, "labelLimit": 0, "domain": False, "ticks": False, "labelColor": INK, "labelPadding": 6}
    axis["minExtent"] = _names_width(data)
    return {"field": "row", "type": "nominal", "sort": order, "axis": axis}


def _names_width(data: Sequence[Spec]) -> float:
    return 12 + _NAME_LETTER * max((letters(entry["row"]) for entry in data), default=0)


def rows_height(data: Sequence[Spec]) -> Spec:
    """The height of a plot of rows."""
    return {"step": _ROW} if data else {"step": 1}


def bars(data: Sequence[Spec], title: str, variant: Variant, series: dict[str, str] | None = None) -> Spec:
    """Horizontal bars of `value` by row, `label` at their ends; stacked by `series` where given, name -> colour."""
    room = variant.width - _names_width(data) - 22
    behind = {entry["label"]: 8 + _LABEL_LETTER * letters(entry["label"]) for entry in data if entry["label"]}
    ends = [entry["end"] * room / (room - behind[entry["label"]]) for entry in data if entry["label"]]
    scale = {"domainMax": max(ends, default=0) or 1, "nice": False}
    most = max((entry["end"] for entry in data), default=0)
    axis = _amounts(list(range(int(most) + 1)) if most < 5 else None)
    x = {"field": "value", "type": "quantitative", "title": title, "axis": axis, "stack": "zero", "scale": scale}
    bar: Spec = {"mark": {"type": "bar", "height": {"band": 0.72}}, "encoding": {"y": y_rows(data), "x": x}}
    if series:
        bar["encoding"]["color"] = _series(series)
        bar["encoding"]["order"] = {"field": "order"}
    bar["encoding"]["description"] = {"field": "told"}
    label = {
        "mark": {"type": "text", "align": "left", "dx": 5, "fill": MUTED},
        "encoding": {
            "y": y_rows(data),
            "x": {"field": "end", "type": "quantitative"},
            "text": {"field": "label"},
        },
        "transform": [{"filter": "datum.label != null"}],
    }
    return {"data": {"values": list(data)}, "height": rows_height(data), "layer": [bar, label]}


def spans(data: Sequence[Spec], title: str, *, log: bool) -> Spec:
    """By row, a thin line from `p05` to `p95`, a thick one from `p25` to `p75` and a dot at `middle`."""
    scale = {"type": "log", "padding": 6} if log else {"zero": False, "padding": 6}
    axis = _amounts()
    if log and data:
        axis = _amounts(log_ticks(min(entry["p05"] for entry in data), max(entry["p95"] for entry in data)))
    x = {"type": "quantitative", "scale": scale, "title": title, "axis": axis}
    y = y_rows(data)
    said = {"field": "told"}

    def line(first: str, last: str, width: int) -> Spec:
        return {
            "mark": {"type": "rule", "strokeWidth": width, "stroke": FIRST, "strokeCap": "round"},
            "encoding": {"y": y, "x": {**x, "field": first}, "x2": {"field": last}, "description": said},
        }

    dot = {
        "mark": {
            "type": "point",
            "filled": True,
            "size": 36,
            "strokeWidth": 1,
            "fill": SECOND,
            "stroke": PAPER,
            "opacity": 1,
        },
        "encoding": {"y": y, "x": {**x, "field": "middle"}, "description": said},
    }
    thin, thick = line("p05", "p95", 1), line("p25", "p75", 6)
    return {"data": {"values": list(data)}, "height": rows_height(data), "layer": [thin, thick, dot]}


def bins(data: Sequence[Spec], title: str, y_title: str, *, log: bool, rules: Sequence[Spec] = ()) -> Spec:
    """Bars over [first, end), as high as `value`; with `other` a line of steps beside; rules at `at`."""
    x = {
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "nice": False} if log else {"zero": False, "nice": False},
        "axis": _amounts(log_ticks(data[0]["first"], data[-1]["end"]) if log else None),
    }
    y_axis: Spec = {"grid": True, "format": "~s" if y_title == "shards" else "~%", "tickCount": 4}
    y = {"field": "value", "type": "quantitative", "title": y_title, "axis": y_axis}
    if y_title == "shards" and (most := max(entry["value"] for entry in data)) < 5:
        y_axis["values"] = list(range(most + 1))
    bar = {
        "mark": {"type": "bar", "fill": FIRST, "stroke": PAPER, "strokeWidth": 0.5},
        "encoding": {"x": {**x, "field": "first"}, "x2": {"field": "end"}, "y": y, "description": {"field": "told"}},
    }
    bar["encoding"]["y2"] = {"datum": 0}
    layers: list[Spec] = [bar]
    if any("other" in entry for entry in data):
        steps = [{"at": entry["first"], "other": entry["other"]} for entry in data]
        steps += [{"at": data[-1]["end"], "other": data[-1]["other"]}]
        layers.append(
            {
                "data": {"values": steps},
                "mark": {"type": "line", "interpolate": "step-after", "stroke": SECOND, "strokeWidth": 2},
                "encoding": {"x": {**x, "field": "at"}, "y": {**y, "field": "other"}},
            }
        )
    for rule in rules:
        layers.append(
            {
                "data": {"values": [rule]},
                "mark": {"type": "rule", "stroke": INK, "strokeDash": [4, 3]},
                "encoding": {"x": {**x, "field": "at"}, "description": {"field": "told"}},
            }
        )
    return {"data": {"values": list(data)}, "height": 260, "layer": layers}


def curve(data: Sequence[Spec], x_title: str, y_title: str) -> Spec:
    """A line through (x, y), both logarithmic, with a dot at each."""
    most = max(entry[name] for entry in data for name in "xy")
    axis = {"labelExpr": _SHORT, "values": [10**power for power in range(len(str(most)))], "grid": False}
    scale = {"type": "log", "nice": False}
    x = {"field": "x", "type": "quantitative", "scale": scale, "title": x_title, "axis": axis}
    y = {
        "field": "y",
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": y_title,
        "axis": {**axis, "grid": True},
    }
    line = {"mark": {"type": "line", "stroke": FIRST, "strokeWidth": 2}, "encoding": {"x": x, "y": y}}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 12, "fill": FIRST, "opacity": 1},
        "encoding": {"x": x, "y": y, "description": {"field": "told"}},
    }
    return {"data": {"values": list(data)}, "height": 260, "layer": [line, dots]}


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`; their doubles and halves too where these are few."""
    powers = [10**power for power in range(-3, 19)]
    ticks = [tick for tick in powers if low <= tick <= high]
    return ticks if len(ticks) > 2 else [tick * by for tick in powers for by in (1, 2, 5) if low <= tick * by <= high]


def _series(series: dict[str, str]) -> Spec:
    legend = {"title": None, "orient": "top", "symbolType": "square"}
    scale = {"domain": list(series), "range": list(series.values())}
    return {"field": "series", "type": "nominal", "scale": scale, "legend": legend if len(series) > 1 else None}


# Billions are B in this field, G in the standard.
_SHORT = "replace(format(datum.value, '~s'), 'G', 'B')"


def _amounts(ticks: list[float] | None = None) -> Spec:
    return {"labelExpr": _SHORT, "grid": True, **({"tickCount": 5} if ticks is None else {"values": ticks})}


_CONFIG: Spec = {
    "background": None,
    "padding": {"left": 2, "top": 2, "right": 16, "bottom": 2},  # half of a label at the end of an axis
    "view": {"stroke": None},
    "font": "sans-serif",  # to measure by; the page's own is used
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "labelFontSize": 11.5,
        "titleFontSize": 11.5,
        "gridColor": GRID,
        "domainColor": GRID,
        "tickColor": GRID,
        "labelOverlap": "greedy",
    },
    "axisX": {"titlePadding": 8},
    "axisY": {"grid": False},
    "legend": {"labelColor": INK, "labelFontSize": 11.5, "offset": 6},
    "text": {"fontSize": 11},
    "bar": {"fill": FIRST},
}


def _finish(svg: str, title: str, variant: str) -> str:
    """The drawing for a page: it scales, tells its marks to the pointer, and shares no id with another."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg)
    root.attrib = {"viewBox": root.attrib["viewBox"], "class": variant, "role": "img", "aria-label": title}
    for node in root.iter():
        said = node.attrib.pop("aria-label", None) if node is not root else None
        for name in ("role", "aria-roledescription", "aria-hidden"):
            if node is not root:
                node.attrib.pop(name, None)
        if said and node.tag.rpartition("}")[2] in ("path", "line", "rect", "circle"):
            child = ElementTree.SubElement(node, f"{{{SVG}}}title")
            child.text = said
        node.attrib.pop("font-family", None)
    text = ElementTree.tostring(root, encoding="unicode")
    prefix = re.sub(r"[^a-z]+", "-", title.lower()) + variant
    return re.sub(r'(id="|url\(#)(\w+)', rf"\g<1>{prefix}-\g<2>", text)
