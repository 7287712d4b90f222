"""Icons, drawn by hand: nothing is fetched from anywhere."""

from __future__ import annotations

from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

_PATHS = {
    "gauge": "M4 17a8 8 0 1 1 16 0M12 17l4-6",
    "list": "M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01",
    "compare": "M4 18l5-8 4 5 7-10M4 8l4 3 5-2 7 8",
    "brain": "M6 6h4v4H6zM14 14h4v4h-4zM14 6h4v4h-4zM10 8h4M16 10v4M8 10v6h6",
    "search": "M10.5 4a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13zM15.5 15.5L20 20",
    "server": "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01",
    "settings": "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
    "logo": "M4 19v-5h4v-4h4V6h4V4h4M4 19h16",
}


def icon(name: str, size: int = 18) -> Component:
    """An icon in the colour of the text round it; screen readers pass over it."""
    drawing = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='black' "
        "stroke-width='1.8' stroke-linecap='round' stroke-linejoin='round'>"
        f"<path d='{_PATHS[name]}'/></svg>"
    )
    mask = f'url("data:image/svg+xml,{quote(drawing)}")'
    return html.Span(
        className="icon",
        style={
            "width": size,
            "height": size,
            "maskImage": mask,
            "WebkitMaskImage": mask,
        },
        **{"aria-hidden": "true"},
    )
