"""`/openapi.json` for programs and `/docs` for people: every route of this gateway, described."""

from collections.abc import Sequence

from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from millstream.gateway.http.asked import Asked
from millstream.gateway.http.described import ANYTHING, Doc, mapping, text
from millstream.gateway.http.endpoints import endpoint
from millstream.gateway.http.openapi import description
from millstream.gateway.http.openapi_page import page

_TAG = "Description"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
_DOCUMENT = Doc(tag=_TAG, summary="This description, for programs (OpenAPI 3.1)", answer=mapping(ANYTHING))
_PAGE = Doc(tag=_TAG, summary="This description, for people", answer=text("A page."), answer_type="text/html")


def openapi_routes(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """For these routes and themselves."""

    def page_of(asked: Asked) -> Response:
        base_url = str(asked.request.base_url).rstrip("/")
        return HTMLResponse(page(document, base_url), headers={"Content-Security-Policy": _POLICY})

    own: list[BaseRoute] = [
        endpoint("GET", "/openapi.json", lambda asked: document, doc=_DOCUMENT, at_once=True),
        endpoint("GET", "/docs", page_of, doc=_PAGE, at_once=True),
    ]
    document = description([*routes, *own])
    return own
