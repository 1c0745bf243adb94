"""The page of `pileshard stats --html` in a real browser: whole, readable, and inert whatever names it holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pileshard.audit.figures import shown
from pileshard.audit.page import page
from pileshard.audit.plots import MOST_ROWS
from pileshard.audit.statistics_report import Statistics
from pileshard.cli import main
from tests.audit.pages import HOSTILE, PILE, made_statistics
from tests.browser import Page, browser, needs_browser
from tests.built import run_build, write_input
from tests.data.golden.make_golden import DATASET

MANY = [f"source number {number}" for number in range(500)]
KINDS: dict[str, dict[str, Any]] = {
    "one source": {"names": ["ArXiv"], "splits": ("train",), "rejects": False, "vocab": False, "inputs": 1},
    "the Pile": {"names": PILE},
    "500 sources": {"names": MANY, "inputs": 3000},
    "hostile names": {"names": HOSTILE},
}
WINDOWS = [(1280, "light"), (400, "light"), (400, "dark"), (1280, "dark")]

#: In the page: elements that reach beyond the window, though no box of theirs scrolls.
OVERFLOWING = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') || e.matches('.scroll'))
  .filter(e => !e.closest('svg') || e.matches('svg'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 200))"""

#: In the page: figures, as titles, and marks that the visible drawing has.
FIGURES = """[...document.querySelectorAll('figure')].map(figure => {
  const drawn = [...figure.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().height > 0);
  const marks = drawn.flatMap(svg => [...svg.querySelectorAll('.role-mark > *')]).filter(mark => {
    const box = mark.getBoundingClientRect(); return box.width > 0 || box.height > 0});
  const outside = drawn.flatMap(svg => { const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter(text => { const box = text.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1})
      .map(text => text.textContent)});
  return {title: figure.querySelector('h3').textContent, drawn: drawn.length, marks: marks.length, outside,
    bars: drawn.flatMap(svg => [...svg.querySelectorAll('.mark-rect.role-mark > path')]).length,
    label: drawn[0]?.getAttribute('aria-label'), letters: Math.min(...drawn.flatMap(svg =>
      [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect().height)))}})"""

#: In the page: the least contrast of any text with what is behind it, and of any mark with the paper.
CONTRAST = """(() => {
  const parse = colour => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const luminance = ([r, g, b]) => { const [x, y, z] = [r, g, b].map(v => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4}); return 0.2126 * x + 0.7152 * y + 0.0722 * z};
  const ratio = (a, b) => { const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05)};
  const behind = element => { for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor); if (colour.length < 4 || colour[3] > 0) return colour }
    return [255, 255, 255]};
  const texts = [...document.querySelectorAll('body *')].filter(e =>
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.getClientRects().length
    && e.tagName !== 'title');
  const colour = e => parse(e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color);
  const marks = [...document.querySelectorAll('.role-mark > path, .role-mark > line')].filter(e =>
    e.getClientRects().length).map(e => { const style = getComputedStyle(e);
    return parse(style.fill === 'none' ? style.stroke : style.fill)});
  const paper = parse(getComputedStyle(document.body).backgroundColor);
  return {texts: texts.length, text: Math.min(...texts.map(e => ratio(colour(e), behind(e)))),
    mark: Math.min(...marks.map(mark => ratio(mark, paper))), paper: luminance(paper)}})()"""


@pytest.fixture(scope="module")
def window() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    out = {}
    for kind in KINDS:
        out[kind] = folder / f"{kind}.html"
        out[kind].write_text(page(statistics(kind)), encoding="utf-8")
    return out


@cache
def statistics(kind: str) -> Statistics:
    options = KINDS[kind]
    return made_statistics(**{**options, "names": list(options["names"])})


def check(window: Page, path: Path, windows: Sequence[tuple[int, str]] = WINDOWS) -> list[dict[str, Any]]:
    """What holds of every page, in every window; returns its figures."""
    figures: list[dict[str, Any]] = []
    for width, scheme in windows:
        window.open(path, width=width, scheme=scheme)
        assert window.requests() == [path.resolve().as_uri()]
        assert window.complaints() == []
        assert window.run("document.documentElement.scrollWidth") == width
        assert window.run(OVERFLOWING) == []
        figures = window.run(FIGURES)
        for figure in figures:
            assert figure["drawn"] == 1, figure
            assert figure["marks"] > 0, figure
            assert figure["label"] == figure["title"]
            assert figure["letters"] >= 9, "letters that nobody can read"
        contrast = window.run(CONTRAST)
        assert contrast["texts"] > 20
        assert contrast["text"] >= 4.5, (width, scheme)
        assert not figures or contrast["mark"] >= 3, (width, scheme)
        assert (contrast["paper"] > 0.5) == (scheme == "light")
    return figures


def test_page_has_no_script_and_asks_for_nothing(files: dict[str, Path]) -> None:
    for path in files.values():
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) < 1_200_000
        assert not re.search(r"<(script|img|iframe|object|embed|link (?!rel=\"icon\" href=\"data:,\"))", text)
        assert not re.search(r"(href|src)=\"(?!data:,)", text)
        assert "url(http" not in text
        assert "@import" not in text
        assert "default-src 'none'" in text


def test_credentials_of_urls_are_on_no_page(files: dict[str, Path]) -> None:
    for path in files.values():
        text = path.read_text(encoding="utf-8")
        assert "host.example" in text
        for secret in ("PASSWORD", "SECRET", "sig=", "me:pw"):
            assert secret not in text


def test_ids_on_a_page_are_its_own(files: dict[str, Path]) -> None:
    for path in files.values():
        ids = re.findall(r"\sid=\"([^\"]*)\"", path.read_text(encoding="utf-8"))
        assert len(ids) == len(set(ids))


def test_same_statistics_give_the_same_page(files: dict[str, Path]) -> None:
    assert files["the Pile"].read_text(encoding="utf-8") == page(statistics("the Pile"))


@needs_browser
@pytest.mark.parametrize("kind", KINDS)
def test_page_is_whole_and_readable_in_a_browser(kind: str, window: Page, files: dict[str, Path]) -> None:
    windows = WINDOWS if len(KINDS[kind]["names"]) < 100 else WINDOWS[::2]
    titles = {figure["title"] for figure in check(window, files[kind], windows)}
    expected = {"Tokens by source", "Tokenization density", "Document lengths", "Document lengths by source"}
    expected |= {"Shard sizes"}
    if KINDS[kind].get("rejects", True):
        expected |= {"Rejected lines by reason", "Rejected lines by input"}
    if KINDS[kind].get("vocab", True):
        expected |= {"Ids by rank", "Ids by how often they occur", "Vocabulary by source"}
    assert titles == expected


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("kind", ["the Pile", "500 sources"])
def test_plots_show_every_row_and_no_text_is_cut(kind: str, width: int, window: Page, files: dict[str, Path]) -> None:
    found = statistics(kind)
    window.open(files[kind], width=width)
    figures = {figure["title"]: figure for figure in window.run(FIGURES)}
    assert {title: figure["outside"] for title, figure in figures.items() if figure["outside"]} == {}
    names = {entry.name for entry in found.sources}
    assert figures["Tokens by source"]["bars"] == 2 * min(len(names), MOST_ROWS + 1)
    assert figures["Document lengths"]["bars"] == len(found.counted.histogram)
    assert figures["Shard sizes"]["bars"] == sum(bool(count) for *_, count in found.shard_histogram)
    assert figures["Rejected lines by reason"]["bars"] == len(found.account.rejected)
    refusing = sum(bool(sum(entry.rejected.values())) for entry in found.inputs)
    assert figures["Rejected lines by input"]["bars"] == min(MOST_ROWS, refusing)


@needs_browser
def test_table_of_sources_has_every_number(window: Page, files: dict[str, Path]) -> None:
    for kind in KINDS:
        found = statistics(kind)
        window.open(files[kind])
        cells = window.run(
            "[...document.querySelector('.scroll table').tBodies[0].rows]"
            ".map(row => [...row.cells].map(cell => cell.textContent))"
        )
        expected = {
            (shown(e.name), e.split, f"{e.counted.documents:,}", f"{e.counted.tokens:,}", f"{e.counted.text_bytes:,}")
            for e in found.sources
        }
        assert {(row[0], row[1], row[2], row[3], row[5]) for row in cells} == expected
        assert len(cells) == len(found.sources)


@needs_browser
def test_hostile_names_are_text_and_nothing_else(window: Page, files: dict[str, Path]) -> None:
    path = files["hostile names"]
    window.open(path)
    assert window.run("document.title") == "pile – dataset statistics"
    counts = window.run(
        "['script', 'img', 'svg', 'style', 'b', 'i', 'figure'].map(name => document.querySelectorAll(name).length)"
    )
    assert counts[:4] == [0, 0, 2 * counts[6], 1]
    assert counts[4:6] == [0, 0]
    assert window.run("getComputedStyle(document.querySelector('h1')).display") == "block"
    text = window.run("document.body.textContent")
    for name in HOSTILE:
        assert shown(name) in text
    assert "\u202e" not in text
    names = window.run("[...document.querySelectorAll('tbody th bdi')].map(e => e.textContent)")
    assert {shown(name) for name in HOSTILE} <= set(names)


@needs_browser
def test_page_prints(window: Page, files: dict[str, Path]) -> None:
    window.open(files["the Pile"], scheme="dark")
    assert window.print().startswith(b"%PDF")
    window.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    try:
        assert window.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert window.run("[...document.querySelectorAll('.scroll')].every(e => e.scrollHeight <= e.clientHeight + 1)")
    finally:
        window.call("Emulation.setEmulatedMedia", media="")


@needs_browser
def test_command_writes_a_page_of_a_built_dataset(window: Page, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["stats", str(DATASET), "--html", str(out), "--vocab", "--workers", "1"]) == 0
    titles = {figure["title"] for figure in check(window, out)}
    assert {"Tokens by source", "Vocabulary by source", "Rejected lines by reason"} <= titles


@needs_browser
def test_page_of_no_document_says_so(window: Page, tmp_path: Path) -> None:
    run_build(tmp_path / "empty", [write_input(tmp_path / "empty.jsonl.zst", [""])])
    out = tmp_path / "page.html"
    assert main(["stats", str(tmp_path / "empty"), "--html", str(out), "--vocab", "--workers", "1"]) == 0
    check(window, out)
    text = window.run("document.body.textContent")
    assert "The dataset holds no document." in text
    assert "No line was rejected." in text


def test_missing_extra_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main(["stats", str(tmp_path / "none"), "--html", str(tmp_path / "page.html")]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "pip install 'pileshard[stats]'" in err
    assert main(["stats", str(DATASET), "--json", str(tmp_path / "numbers.json")]) == 0
