"""Engines that come and go by themselves, found where they run."""

from forebay.router.discovery.cluster import Cluster, ClusterError, connect
from forebay.router.discovery.following import Discovery, Report
from forebay.router.discovery.pods import Labels, Rules

__all__ = ["Cluster", "ClusterError", "Discovery", "Labels", "Report", "Rules", "connect"]
