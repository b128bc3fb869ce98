"""A comparison as one HTML file that opens offline: styles, script and pictures are inside.

Everything that comes from a trace is escaped, and a content security policy forbids whatever else a name could try.
"""

from __future__ import annotations

import base64
import hashlib
import html
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing import plots
from tracerec.comparing.growth import label
from tracerec.comparing.text import HEADINGS, cells_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracerec.comparing.comparison import Comparison
    from tracerec.comparing.pictures import Picture

__all__ = ["as_html"]

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--dim:#667085;--line:#d5dae3;--back:#fff;--soft:#f4f6f9;--bad:#c0362c;
--good:#1d7f4e;--warn:#9a6700;--a:#2f6fde}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--line:#3a4250;--back:#14181f;--soft:#1d232d;
--bad:#ff7b6e;--good:#4cc38a;--warn:#e2b340;--a:#7aa7ff}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);margin:0 auto;max-width:1200px;
padding:24px}
h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:32px 0 8px}
.dim{color:var(--dim)}.equal{color:var(--good)}.different{color:var(--bad)}.incomplete,.not{color:var(--warn)}
pre{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:12px;overflow-x:auto;
font:13px/1.45 ui-monospace,monospace}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;padding:5px 10px;border-bottom:1px solid var(--line);white-space:nowrap}
th{cursor:pointer;background:var(--soft);position:sticky;top:0}td.number{text-align:right;
font-variant-numeric:tabular-nums}
tr.bad td:first-child{border-left:3px solid var(--bad)}tr.good td:first-child{border-left:3px solid var(--good)}
input[type=search]{font:inherit;padding:5px 9px;border:1px solid var(--line);border-radius:6px;background:var(--back);
color:var(--ink);min-width:280px}
.bar{display:flex;gap:16px;align-items:center;margin:0 0 8px;flex-wrap:wrap}
svg{max-width:100%;height:auto;display:block}
svg text{font:11px system-ui,sans-serif}svg text:not([fill]){fill:var(--dim)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:24px}
.maps{display:flex;gap:16px;flex-wrap:wrap;margin:8px 0 20px}figure{margin:0}
figcaption{font-size:12px;color:var(--dim)}
img{image-rendering:pixelated;width:280px;height:200px;border:1px solid var(--line);border-radius:4px}
"""

_SCRIPT = """
const body=document.querySelector('#taps tbody'),box=document.querySelector('#filter'),
only=document.querySelector('#only'),count=document.querySelector('#count');
function show(){const words=box.value.toLowerCase().split(/\\s+/).filter(Boolean);let n=0;
for(const row of body.rows){const text=row.textContent.toLowerCase();
row.hidden=!(words.every(w=>text.includes(w))&&(!only.checked||row.classList.contains('bad')));
if(!row.hidden)n++}count.textContent=n+' of '+body.rows.length}
box.addEventListener('input',show);only.addEventListener('change',show);show();
document.querySelectorAll('#taps th').forEach((head,i)=>{let up=false;head.addEventListener('click',()=>{up=!up;
const key=r=>{const c=r.cells[i];return c.dataset.v!==undefined?parseFloat(c.dataset.v):c.textContent};
const rows=[...body.rows].sort((x,y)=>{const p=key(x),q=key(y);
return (p<q?-1:p>q?1:0)*(up?1:-1)});rows.forEach(r=>body.append(r))})});
"""


def as_html(comparison: Comparison) -> str:
    """Returns the page."""
    return "\n".join(_page(comparison)) + "\n"


def _page(comparison: Comparison) -> Iterator[str]:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (_SCRIPT, _STYLE)]
    policy = f"default-src 'none'; img-src data:; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'"
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>{_text(comparison.verdict)}: {_text(comparison.runs.a)} and {_text(comparison.runs.b)}</title>"
    yield f"<style>{_STYLE}</style>\n</head>\n<body>"
    yield from _verdict(comparison)
    yield from _plots(comparison)
    yield from _heatmaps(comparison)
    yield from _table(comparison)
    yield from _rest(comparison)
    yield f"<script>{_SCRIPT}</script>\n</body>\n</html>"


def _verdict(comparison: Comparison) -> Iterator[str]:
    runs, verdict = comparison.runs, comparison.verdict
    yield f'<h1 id="verdict" class="{verdict.split()[0]}">{_text(verdict.capitalize())}</h1>'
    yield f"<p>{_text(comparison.summary)}</p>"
    yield (
        f'<p class="dim">a: {_text(runs.a)}, {runs.records_a:,} records<br>'
        f"b: {_text(runs.b)}, {runs.records_b:,} records</p>"
    )
    first, culprit = comparison.first_divergence, comparison.culprit
    if first is not None:
        yield "<h2>First divergence</h2>"
        yield f'<pre id="first">{_text(chr(10).join(first.lines()))}</pre>'
        if culprit is not None and culprit.place < first.place:
            yield "<p>Values differ, within tolerance, from here on:</p>"
            yield f"<pre>{_text(chr(10).join(culprit.lines()))}</pre>"


def _plots(comparison: Comparison) -> Iterator[str]:
    bad = [cell for cell in comparison.cells if cell.counts.worst_pair >= 0]
    if not bad:
        return
    growth, first = comparison.growth, comparison.first_divergence
    worst = sorted(bad, key=lambda cell: -cell.counts.worst_error)[: plots.LINES]
    lines = [(label(cell), *growth.of_cells([cell])) for cell in worst]
    yield '<div class="plots">'
    yield f"<section><h2>Error over steps</h2>{plots.over_steps(lines)}</section>"
    step = first.step if first is not None and isinstance(first.step, (int, float)) else None
    depth = growth.along_taps(step)
    at = "all records" if step is None else f"step {step}"
    yield f"<section><h2>Error over depth, {_text(at)}</h2>{plots.over_depth(depth)}</section></div>"
    yield '<p class="dim">Error: the norm of the difference over the norm of a. Depth: taps in order of execution.</p>'


def _heatmaps(comparison: Comparison) -> Iterator[str]:
    if not comparison.pictures:
        return
    yield "<h2>The worst tensors</h2>"
    for picture in comparison.pictures:
        shape = "x".join(map(str, picture.shape))
        yield f'<p>{_text(picture.record)} <span class="dim">{shape}</span></p><div class="maps">'
        for caption, source in _images(picture):
            image = f'<img alt="{_text(caption)}" src="{source}">'
            yield f"<figure>{image}<figcaption>{_text(caption)}</figcaption></figure>"
        yield "</div>"


def _images(picture: Picture) -> Iterator[tuple[str, str]]:
    both = np.concatenate([picture.a.reshape(-1), picture.b.reshape(-1)])
    most = float(np.nanmax(np.abs(both), initial=0.0)) or 1.0
    for name, values in (("a", picture.a), ("b", picture.b)):
        yield f"{name}, from {-most:.3g} to {most:.3g}", _png(_diverging(values / most))
    finite = picture.difference[np.isfinite(picture.difference)]
    top = float(finite.max(initial=0.0)) or 1.0
    yield f"|a - b|, up to {top:.3g}", _png(_rising(picture.difference / top))


def _table(comparison: Comparison) -> Iterator[str]:
    yield '<h2>Taps</h2><div class="bar">'
    yield '<input id="filter" type="search" placeholder="Filter" aria-label="Filter taps">'
    yield '<label><input id="only" type="checkbox"> only what differs</label><span id="count" class="dim"></span></div>'
    yield '<div class="wide"><table id="taps"><thead><tr>'
    yield "".join(f"<th>{_text(heading)}</th>" for heading in HEADINGS) + "</tr></thead><tbody>"
    for row in comparison.rows():
        kind = "bad" if row["different"] else "good"
        yield f'<tr class="{kind}">' + "".join(_cell(row, i, text) for i, text in enumerate(cells_of(row))) + "</tr>"
    yield "</tbody></table></div>"


_NUMBERS = {3: "different", 4: "max_abs", 5: "max_rel", 6: "max_ulp", 7: "need_rtol"}


def _cell(row: dict[str, Any], column: int, text: str) -> str:
    if column not in _NUMBERS:
        return f"<td>{_text(text)}</td>"
    value = row[_NUMBERS[column]]
    return f'<td class="number" data-v="{-1 if value is None else _number(value)}">{_text(text)}</td>'


def _number(value: float) -> str:
    return "Infinity" if value == np.inf else repr(value)


def _rest(comparison: Comparison) -> Iterator[str]:
    if comparison.unmatched:
        yield '<h2>Not compared</h2><ul id="unmatched">'
        yield from (f"<li>{_text(str(each))}</li>" for each in comparison.unmatched)
        yield "</ul>"
    if comparison.tolerances:
        yield "<h2>Tolerances</h2><ul>"
        yield from (f"<li>{_text(dtype)}: {_text(text)}</li>" for dtype, text in comparison.tolerances.items())
        yield "</ul>"
    yield from (f'<p class="dim">{_text(note)}</p>' for note in comparison.runs.notes)


def _text(text: str) -> str:
    """Returns text that is nothing but text; what no page can hold is a replacement character."""
    return html.escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text), quote=True)


def _diverging(values: np.ndarray) -> np.ndarray:
    """Returns the colours of values from -1 (blue) over 0 (white) to 1 (red); NaN is grey."""
    low, high = np.clip(-values, 0, 1)[..., None], np.clip(values, 0, 1)[..., None]
    colour = 255 - low * np.array([255 - 33, 255 - 102, 255 - 172]) - high * np.array([255 - 178, 255 - 24, 255 - 43])
    return np.where(np.isnan(values)[..., None], 128, colour).astype(np.uint8)


def _rising(values: np.ndarray) -> np.ndarray:
    """Returns the colours of values from 0 (black) to 1 (yellow); what is infinite is magenta."""
    there = np.clip(np.where(np.isfinite(values), values, 0), 0, 1)[..., None]
    stops = np.concatenate([there * 255, np.clip(there * 2 - 0.6, 0, 1) * 235, 40 * (1 - there)], axis=-1)
    return np.where(np.isinf(values)[..., None], np.array([255, 0, 255]), stops).astype(np.uint8)


def _png(pixels: np.ndarray) -> str:
    """Returns an image as a data URL: PNG (W3C, 2003), eight bits a channel."""
    height, width = pixels.shape[:2]
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data += chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()
