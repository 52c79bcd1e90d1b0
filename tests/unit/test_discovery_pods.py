"""Pods and EndpointSlices as endpoints: how each is reached, what it is, and whether it is sent requests."""

from typing import Any

import msgspec
import pytest

from forebay.router import EndpointSpec, Group, Role
from forebay.router.discovery.pods import Found, Labels, Pod, Rules, Slice, found
from tests.doubles.kubernetes import Object, pod, slice_

LABELS = Labels("forebay.dev/role", "forebay.dev/revision", "forebay.dev/accelerator", "forebay.dev/drain")


def rules(**changes: Any) -> Rules:
    return msgspec.structs.replace(Rules("http", LABELS, "vllm", "m"), **changes)


def looked(pods: list[Object], slices: list[Object] | None, **changes: Any) -> Found:
    known = {one["metadata"]["name"]: msgspec.convert(one, Pod) for one in pods}
    return found(known, None if slices is None else [msgspec.convert(one, Slice) for one in slices], rules(**changes))


def by_service(*pods: Object, of_slice: dict[str, Any] | None = None, **changes: Any) -> Found:
    named = {one["metadata"]["name"]: one for one in pods}
    return looked(list(pods), [slice_("engines-x", named, **(of_slice or {}))], **changes)


def draining(all_found: Found) -> dict[str, str]:
    return {spec.name: spec.draining for spec in all_found.specs}


def test_a_pod_of_the_service_is_reached_by_its_slice_and_named_by_itself() -> None:
    labels = {"forebay.dev/role": "decode", "forebay.dev/revision": "r7", "forebay.dev/accelerator": "h200"}
    one = pod("engine-0", "10.0.0.7", uid="u1", labels=labels, ports={"events": 5557, "replay": 5657})
    assert by_service(one, events="events", replay="replay", priority_scheduling=True, api_key="k").specs == (
        EndpointSpec(
            "engine-0", "http://10.0.0.7:8000", "vllm", "m", "k", True, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5657",
            instance="u1", group=Group(Role.DECODE, "r7", "h200"),
        ),
    )  # fmt: skip


def test_ranks_share_a_port_and_have_events_of_their_own() -> None:
    specs = by_service(pod("e", "10.0.0.7"), port="9000", events="5557", replay="5657", ranks=2).specs
    assert [(one.name, one.url, one.events, one.replay, one.rank) for one in specs] == [
        ("e/0", "http://10.0.0.7:9000", "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5657", 0),
        ("e/1", "http://10.0.0.7:9000", "tcp://10.0.0.7:5558", "tcp://10.0.0.7:5658", 1),
    ]


@pytest.mark.parametrize(("one", "of_slice", "why"), [
    (pod("e"), {}, ""),
    (pod("e", deleted=True), {}, "its pod is terminating"),
    (pod("e"), {"terminating": ["e"]}, "its pod is terminating"),
    (pod("e", deleted=True), {"unready": ["e"], "terminating": ["e"]}, "its pod is terminating"),
    (pod("e"), {"unready": ["e"]}, "its pod is not ready"),
    (pod("e", ready=False), {}, ""),  # the service publishes those that are not ready
    (pod("e", labels={"forebay.dev/drain": "true"}), {}, "its pod has the label forebay.dev/drain"),
    (pod("e", labels={"forebay.dev/drain": "false"}), {}, ""),
], ids=["well", "deleted", "slice says", "both", "not ready", "published", "drained", "not drained"])  # fmt: skip
def test_who_is_sent_nothing_new(one: Object, of_slice: dict[str, Any], why: str) -> None:
    """production-stack#601. A pod that is going is out whatever its slice says."""
    assert draining(by_service(one, of_slice=of_slice)) == {"e": why}


def test_pods_without_a_service_say_themselves_whether_they_are_ready() -> None:
    pods = [pod("a"), pod("b", ready=False), pod("c", deleted=True), pod("d", phase="Failed"), pod("e", "")]
    all_found = looked(pods, None, port="8000")
    assert draining(all_found) == {"a": "", "b": "its pod is not ready", "c": "its pod is terminating"}
    assert all_found.left_out == {"e": "has no address yet"}


def test_what_is_left_out_says_why() -> None:
    odd = slice_("x", {"gone": pod("gone")})
    odd["endpoints"].append({"addresses": ["10.9.9.9"]})
    odd["endpoints"].append({"addresses": ["10.9.9.8"], "targetRef": {"kind": "Node", "name": "n"}})
    renamed = slice_("y", {"new": pod("new", uid="of the one before")})
    pods = [pod("new"), pod("bad", labels={"forebay.dev/role": "both"})]
    all_found = looked(pods, [odd, renamed, slice_("z", {"bad": pods[1]})])
    assert all_found.specs == ()
    assert all_found.left_out == {
        "gone": "is in the service, and its pod is not known",
        "new": "is in the service, and its pod is not known",
        "10.9.9.9": "is not a pod",
        "10.9.9.8": "is not a pod",
        "bad": "has the label forebay.dev/role=both, which is none of unified, prefill, decode",
    }
    assert by_service(pod("e"), port="web").left_out == {"e": "has no port named web"}
    assert by_service(pod("e"), port="70000").left_out == {"e": "cannot have the port 70000"}


def test_a_pod_in_two_slices_is_one_endpoint() -> None:
    """As in a cluster of two families, or while it moves from one slice to another."""
    one = pod("e", "10.0.0.1")
    six = slice_("a", {"e": pod("e", "fd00::1")}, family="IPv6")
    four = slice_("z", {"e": one}, unready=["e"])
    (spec,) = looked([one], [six, four]).specs
    assert (spec.url, spec.draining) == ("http://10.0.0.1:8000", "")
    (spec,) = looked([one], [six], events="5557").specs
    assert (spec.url, spec.events) == ("http://[fd00::1]:8000", "tcp://[fd00::1]:5557")
    assert looked([one], [slice_("f", {"e": one}, family="FQDN")]).specs == ()


def test_nothing_there_is_no_endpoint() -> None:
    assert looked([], [slice_("x", {})]) == Found((), {})
    assert looked([], []) == Found((), {})
    assert looked([], None) == Found((), {})
