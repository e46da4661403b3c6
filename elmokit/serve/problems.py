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
"""Maximum number of characters of a path or field name in a message. Both come from the client and can be long."""


class Problem(Exception):
    """An error answer: an HTTP status, and a message that explains how to fix the request."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,  # the request field that caused it
        code: str | None = None,  # a short name for programs
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @classmethod
    def unexpected(cls) -> Problem:
        """Create the answer for an error in the server's own code."""
        return cls(500, "An unexpected error occurred. See the server's log.")

    def response(self) -> Response:
        """Return the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        content = msgspec.json.encode({"error": error})
        return Response(content, self.status, headers=self.headers, media_type=JSON)


def add_handlers(app: FastAPI) -> None:
    """Make an app answer every error in this form, without a stack trace."""
    for kind in (Problem, RequestValidationError, HTTPException, ElmoError, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        return _invalid(error).response()
    if isinstance(error, HTTPException):
        return _http(request, error).response()
    if isinstance(error, ElmoError):
        return Problem(422, str(error)).response()
    if is_out_of_memory(error):
        return Problem(503, "The server is out of memory. Send fewer texts at once.", code="out_of_memory").response()
    # Starlette re-raises an unexpected error after the answer, and the guard logs it.
    return (error if isinstance(error, Problem) else Problem.unexpected()).response()


def _invalid(error: RequestValidationError) -> Problem:
    """Answer a body that is not JSON with 400, and a body with wrong fields or types with 422."""
    first: dict[str, Any] = error.errors()[0]
    kind, message = first["type"], str(first["msg"]).removeprefix("Value error, ")
    path = [str(key)[:MAX_SHOWN] for key in first["loc"][1:]]
    if kind == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return Problem(400, f"The body is not valid JSON: {reason}.", code="invalid_json")
    if not path and kind != "value_error":
        return Problem(422, "Expected a JSON object in the body, with the header Content-Type: application/json.")
    if kind == "extra_forbidden":
        message = "This request has no such field. /openapi.json lists its fields."
    param = ".".join(path) or None
    return Problem(422, f"{param}: {message}" if param else message, param=param)


def _http(request: Request, error: HTTPException) -> Problem:
    # FastAPI answers every error while reading a body with 400, but the guard's errors have their own answers.
    if isinstance(error.__cause__, Problem):
        return error.__cause__
    path = request.scope["path"][:MAX_SHOWN]  # not request.url, which older Starlette versions derive from Host
    messages = {
        400: f"The body cannot be read as JSON in UTF-8: {error.__cause__}",
        404: f"The path {path} does not exist. /openapi.json lists all paths.",
        405: f"The path {path} does not support {request.method}.",
    }
    message = messages.get(error.status_code, str(error.detail))
    return Problem(error.status_code, message, headers=error.headers)
