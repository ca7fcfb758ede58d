"""Which RPC a path means: literal, decoded once, per segment."""

import pytest

from oip.errors import OipError
from oip.http_routes import Route, find_route
from oip.reasons import Reason

GET = ("GET", "HEAD")
POST = ("POST",)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        (b"/v2", Route("ServerMetadata", GET)),
        (b"/v2/health/live", Route("ServerLive", GET)),
        (b"/v2/health/ready", Route("ServerReady", GET)),
        (b"/v2/models/m", Route("ModelMetadata", GET, "m")),
        (b"/v2/models/m/versions/3", Route("ModelMetadata", GET, "m", "3")),
        (b"/v2/models/m/ready", Route("ModelReady", GET, "m")),
        (b"/v2/models/m/versions/3/config", Route("ModelConfig", GET, "m", "3")),
        (b"/v2/models/m/infer", Route("ModelInfer", POST, "m")),
        (b"/v2/models/m/versions/v1/infer", Route("ModelInfer", POST, "m", "v1")),
        (b"/v2/models/stats", Route("ModelStatistics", GET)),
        (b"/v2/models/m/versions/3/stats", Route("ModelStatistics", GET, "m", "3")),
        (b"/v2/repository/index", Route("RepositoryIndex", POST)),
        (b"/v2/repository/models/ns%2Fm/load", Route("RepositoryModelLoad", POST, "ns/m")),
        (b"/v2/repository/models/m/unload", Route("RepositoryModelUnload", POST, "m")),
        (b"/v2/cudasharedmemory/region/r/status", Route("CudaSharedMemoryStatus")),
        (b"/v2/models/m/versions/1/trace/setting", Route("TraceSetting", (*GET, *POST), "m", "1")),
        (b"/v2/logging", Route("LogSettings", (*GET, *POST))),
    ],
)
def test_paths_of_the_protocol(path, route):
    assert find_route(path) == route


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        (b"a%20b", "a b"),
        (b"a%25b", "a%b"),
        (b"ns%2Fm", "ns/m"),
        (b"ns%252Fm", "ns%2Fm"),
        (b"%2e%2e", ".."),
        (b"..", ".."),
        (b"m:v", "m:v"),
        (b"m+v", "m+v"),
        (b"%E6%A8%A1%E5%9E%8B", "模型"),
        (b"infer", "infer"),
        (b"ready", "ready"),
        (b"versions", "versions"),
        (b"%", "%"),
        (b"%zz", "%zz"),
    ],
)
def test_a_name_is_one_segment_decoded_once(segment, name):
    assert find_route(b"/v2/models/%b/infer" % segment) == Route("ModelInfer", POST, name)
    assert find_route(b"/v2/models/%b" % segment).model == name


def test_a_model_named_versions_has_versions():
    assert find_route(b"/v2/models/versions/versions/1/ready") == Route("ModelReady", GET, "versions", "1")


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"*",
        b"v2",
        b"//v2",
        b"/v2/",
        b"/V2",
        b"/%762",
        b"/v2/health",
        b"/v2/models",
        b"/v2/models/",
        b"/v2/models//infer",
        b"/v2/models/m/",
        b"/v2/models/m/infer/",
        b"/v2/models/m/%69nfer",
        b"/v2/models/m/versions",
        b"/v2/models/m/versions//infer",
        b"/v2/models/ns/m/infer",
        b"/v2/models/../health/live",
        b"/v2/repository/models/m",
        b"/v2/systemsharedmemory/region/status",
    ],
)
def test_anything_else_is_not_found(path):
    with pytest.raises(OipError) as caught:
        find_route(path)
    assert caught.value.reason is Reason.NOT_FOUND


def test_bytes_beyond_ascii_are_taken_as_they_are():
    assert find_route("/v2/models/模/infer".encode()).model == "模"
    assert find_route("/v2/models/é%C3%A9".encode()).model == "éé"


@pytest.mark.parametrize("name", [b"%FF%FE", b"\xff\xfe", b"\xe9", b"\xc3%20"])
def test_a_name_that_is_not_utf_8_is_malformed(name):
    with pytest.raises(OipError) as caught:
        find_route(b"/v2/models/%b/infer" % name)
    assert caught.value.reason is Reason.MALFORMED
