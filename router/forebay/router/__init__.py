"""Engines, which of them answers, and the wire to them."""

from forebay.router.adapters import Adapter, ServerFields, Usage, decode_usage
from forebay.router.clocked import LocalRouter
from forebay.router.core import Core
from forebay.router.crowd import in_turn
from forebay.router.endpoints import Endpoint, EndpointSpec, Pool, Roster, Ticker
from forebay.router.local import RouterService
from forebay.router.peers import Contact, Entry, Peers, Refusal, Report, Sharing
from forebay.router.prefix.keys import Weights, seeded
from forebay.router.prefix.snapshot import Loading, SnapshotError, dump
from forebay.router.prompt.chat import Chat, TemplateError
from forebay.router.prompt.ladder import Ladder
from forebay.router.prompt.ladder_limit import TooLongError
from forebay.router.prompt.memory import Memory
from forebay.router.prompt.prompt import Prompt, Rung
from forebay.router.prompt.prompter import Checkpoint, Prompter, Read, byte_read, ids_read
from forebay.router.prompt.template import Template
from forebay.router.prompt.template_models import untemplated
from forebay.router.prompt.tokenizer import Tokenizer
from forebay.router.prompt.tokenizer_files import TokenizerError
from forebay.router.prompt.trie import Node
from forebay.router.rates import Learnt
from forebay.router.remote.channel import Handler, RouterUnavailable
from forebay.router.remote.client import RemoteRouter
from forebay.router.remote.server import RouterServer
from forebay.router.remote.sockets import SocketInUseError, private_path
from forebay.router.remote.wire import FrameError, Framer, frame
from forebay.router.reporting import Reporter
from forebay.router.routing import (
    Ask,
    Candidate,
    EndpointState,
    Explanation,
    Following,
    Group,
    Health,
    Outcome,
    Placed,
    Reading,
    Refused,
    Result,
    Role,
    Router,
    Why,
)
from forebay.router.tiers import DEFAULT, Shed, Tier, Tiers
from forebay.router.upstream import Client, Connection, UpstreamError, Wake

__all__ = [
    "DEFAULT",
    "Adapter",
    "Ask",
    "Candidate",
    "Chat",
    "Checkpoint",
    "Client",
    "Connection",
    "Contact",
    "Core",
    "Endpoint",
    "EndpointSpec",
    "EndpointState",
    "Entry",
    "Explanation",
    "Following",
    "FrameError",
    "Framer",
    "Group",
    "Handler",
    "Health",
    "Ladder",
    "Learnt",
    "Loading",
    "LocalRouter",
    "Memory",
    "Node",
    "Outcome",
    "Peers",
    "Placed",
    "Pool",
    "Prompt",
    "Prompter",
    "Read",
    "Reading",
    "Refusal",
    "Refused",
    "RemoteRouter",
    "Report",
    "Reporter",
    "Result",
    "Role",
    "Roster",
    "Router",
    "RouterServer",
    "RouterService",
    "RouterUnavailable",
    "Rung",
    "ServerFields",
    "Sharing",
    "Shed",
    "SnapshotError",
    "SocketInUseError",
    "Template",
    "TemplateError",
    "Ticker",
    "Tier",
    "Tiers",
    "Tokenizer",
    "TokenizerError",
    "TooLongError",
    "UpstreamError",
    "Usage",
    "Wake",
    "Weights",
    "Why",
    "byte_read",
    "decode_usage",
    "dump",
    "frame",
    "ids_read",
    "in_turn",
    "private_path",
    "seeded",
    "untemplated",
]
