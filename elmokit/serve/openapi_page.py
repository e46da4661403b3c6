"""``/docs``: the OpenAPI description of the server as one plain page.

FastAPI's own pages load their scripts from another host, so they show nothing where there is no internet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>elmokit: requests</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<main>
"""


def openapi_page(openapi: Mapping[str, Any]) -> str:
    """Return the HTML page of an OpenAPI description."""
    info = openapi["info"]
    blocks = [
        _HEAD,
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])} For programs: <a href='openapi.json'>openapi.json</a>.</p>",
    ]
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            blocks.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            blocks.append(f"<p>{escape(operation.get('description') or operation['summary'])}</p>")
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body is not None:
                blocks.append(_fields(openapi["components"]["schemas"][body["$ref"].rpartition("/")[2]]))
            answers = [
                f"<li>{escape(status)}: {escape(answer['description'])}</li>"
                for status, answer in operation["responses"].items()
                if status != "200"
            ]
            if body is not None:
                blocks += ["<p>Answers other than 200:</p>", "<ul>", *answers, "</ul>"]
    return "\n".join([*blocks, "</main>", "</body>", "</html>", ""])


def _fields(schema: Mapping[str, Any]) -> str:
    rows = []
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else json.dumps(field.get("default"))
        rows.append(
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field))}</td>"
            f"<td>{escape(default)}</td><td>{escape(field.get('description', ''))}</td></tr>"
        )
    head = "<tr><th>field</th><th>type</th><th>default</th><th>meaning</th></tr>"
    return f"<table>\n<thead>{head}</thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table>"


def _kind(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_kind(choice) for choice in field["anyOf"])
    if "enum" in field:
        return ", ".join(json.dumps(value) for value in field["enum"])
    if "const" in field:
        return json.dumps(field["const"])
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}"
    return str(field.get("type", "any"))
