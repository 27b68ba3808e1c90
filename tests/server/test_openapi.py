"""The published description is true, and what schemathesis makes of it breaks nothing."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance
from server_support import Running

from draftproof.server.routes import Routes, description

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
DESCRIBED = schemathesis.openapi.from_dict(description())
OPERATIONS = [found.ok() for found in DESCRIBED.get_all_operations()]
CASES = [
    pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
    for operation in OPERATIONS
    for mode in GenerationMode
    if operation.body or mode is GenerationMode.POSITIVE  # a GET has nothing that could be wrong
]


@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_nothing_breaks(operation: Any, mode: GenerationMode, running: Running) -> None:
    @given(st.data())
    @settings(
        max_examples=12, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck]
    )
    def check(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        response = case.call(base_url=running.url)
        case.validate_response(response, checks=CHECKS)

    check()


def test_everything_is_described(running: Running) -> None:
    paths = {route.path.replace(":path", "") for route in Routes(running.service).table()}
    described = set(running.client.get("/openapi.json").json()["paths"])
    apart = {path for path in paths if path == "/" or path.startswith(("/static/", "/v1/draft"))}
    assert described | apart | {"/v1/health"} == paths
