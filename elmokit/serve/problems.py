"""Error answers, in the form of the OpenAI API: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from elmokit.errors import ElmoError, is_out_of_memory

logger = logging.getLogger("elmokit.serve")
JSON = "application/json"
MAX_SHOWN = 100
"""Characters of a path, and of a field's name, that a message shows: both are the client's, and can be long."""


class Problem(Exception):
    """A request that is not answered with a result: an HTTP status and a message that says how to fix it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,  # the field of the request that it is about
        code: str | None = None,  # a short name of the problem for programs
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @classmethod
    def unexpected(cls) -> Problem:
        """Create the answer to an error in the server's own code."""
        return cls(500, "An unexpected error happened. The log of the server says more.")

    @classmethod
    def stopping(cls) -> Problem:
        """Create the answer to a request that the server has no time for, because it stops."""
        headers = {"Connection": "close"}
        return cls(503, "The server is stopping. Send the request again.", code="stopping", headers=headers)

    def response(self) -> Response:
        """Return the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        content = msgspec.json.encode({"error": error})
        return Response(content, self.status, headers=self.headers, media_type=JSON)


def add_handlers(app: FastAPI) -> None:
    """Answer every error of an app in this form, without a stack trace."""
    handlers: list[tuple[Any, Any]] = [
        (Problem, _problem),
        (RequestValidationError, _invalid),
        (HTTPException, _http),
        (ElmoError, _elmo_error),
        (Exception, _unexpected),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)


async def _problem(request: Request, problem: Problem) -> Response:
    return problem.response()


async def _elmo_error(request: Request, error: ElmoError) -> Response:
    return Problem(422, str(error)).response()


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    """Answer a body that is not JSON with 400, and one that has other fields or types with 422."""
    first: dict[str, Any] = error.errors()[0]
    kind, message = first["type"], str(first["msg"]).removeprefix("Value error, ")
    path = [str(key)[:MAX_SHOWN] for key in first["loc"][1:]]
    if kind == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return Problem(400, f"The body is not valid JSON: {reason}.", code="invalid_json").response()
    if not path and kind != "value_error":
        return Problem(
            422, "Expected a JSON object in the body, with the header Content-Type: application/json."
        ).response()
    param = ".".join(path) or None
    if kind == "extra_forbidden":
        message = "Unknown field. /docs lists the fields of each request."
    elif kind == "missing":
        message = "The field is missing."
    return Problem(422, f"{param}: {message}" if param else message, param=param).response()


async def _http(request: Request, error: HTTPException) -> Response:
    # FastAPI answers every error while it reads a body with 400. One of the guard has an answer of its own.
    if isinstance(error.__cause__, Problem):
        return error.__cause__.response()
    path = request.scope["path"][:MAX_SHOWN]  # not of request.url, which older versions of Starlette take from Host
    messages = {
        400: _unreadable(error.__cause__),
        404: f"There is nothing at {path}. /docs lists the addresses.",
        405: f"{path} does not accept {request.method}. /docs lists the addresses.",
    }
    message = messages.get(error.status_code, str(error.detail))
    return Problem(error.status_code, message, headers=error.headers).response()


def _unreadable(cause: BaseException | None) -> str:
    """Say why a body that may be valid JSON was not read."""
    if isinstance(cause, RecursionError):
        return "The JSON in the body is nested too deeply."
    # Not of UTF-8: Python converts no integers that are longer than its limit, as that takes time.
    if isinstance(cause, ValueError) and not isinstance(cause, UnicodeError):
        return "The JSON in the body has a number with too many digits."
    return "The body cannot be read. Send JSON in UTF-8."


async def _unexpected(request: Request, error: Exception) -> Response:
    if is_out_of_memory(error):
        return Problem(503, "The server is out of memory. Send fewer texts at once.", code="out_of_memory").response()
    # Starlette raises the error again after the answer, and the guard logs it.
    return Problem.unexpected().response()
