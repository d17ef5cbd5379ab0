"""The commands of `sia --help` by group, each with the first sentence of its help.

The help of a command repeats the sentence. This copy lets `sia --help` print all commands without
importing one of them, which would take half a second; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

CATALOGUE: Mapping[str, Mapping[str, str]] = {
    "Jobs": {
        "submit": "Submit a job, an array, or a file of jobs.",
        "jobs": "List jobs, newest first.",
        "job": "Show a job or an array.",
        "log": "Print the output of a job.",
        "cancel": "Cancel jobs or arrays.",
        "hold": "Hold pending jobs.",
        "release": "Release held jobs.",
        "priority": "Set the priority of pending jobs within their pool.",
        "report": "Report the progress of a running job.",
    },
    "Pools and lending": {
        "pools": "List pools: quota, use, lent and borrowed GPUs.",
        "pool": "Show or change a pool.",
        "lending": "Turn lending on or off, simulate it, or show its state.",
        "loans": "List open loans.",
        "plan": "Show the resource-time plan of each sharing group.",
        "grants": "Show what is granted to users and pools, and who uses how much of it.",
        "ledger": "List the loans of a pool, newest first.",
        "account": "Show what a pool gained and lost by sharing.",
        "statement": "Show the monthly statement of a pool.",
    },
    "Answers": {
        "why": "Explain why a job is pending.",
        "eta": "Estimate when a job starts and ends.",
        "whatif": "Show which jobs would start or end earlier or later after a change.",
        "estimates": "Show how accurate past estimates were.",
    },
    "Operate": {
        "serve": "Run the daemon until SIGTERM.",
        "demo": "Watch pools lend to each other in a simulated cloud.",
        "status": "Show the health of the daemon.",
        "top": "Watch pools, the queue and the newest loans.",
        "events": "Print past events, or follow new ones.",
        "nodes": "List nodes.",
        "drain": "Stop placing jobs on a node; running jobs continue.",
        "resume": "Place jobs on a node again.",
        "maintenance": "Plan maintenance windows of nodes.",
        "token": "Create, list and revoke API tokens.",
        "audit": "Show and verify the audit log.",
        "webhook": "Show and test webhooks, and retry failed deliveries.",
        "journal": "Back up, verify, import, export or replay the journal of a daemon.",
        "asyncapi": "Print the AsyncAPI document of the MQTT topics.",
        "completion": "Print the completion script for a shell.",
    },
    "Offline": {
        "replay": "Replay a job log under one or more policies.",
        "trace": "Generate, convert, cut and describe job logs.",
        "compare": "Compare two results pair by pair, with 95 % intervals.",
        "fairness": "Measure how fairly a schedule treated each job, and how efficient it was.",
        "market": "Solve markets of rounds, in which jobs that are treated worst buy first.",
        "regimes": "Predict jobs that change their batch size while they train.",
        "experiment": "Compare policies over many pieces or sizes of a job log.",
        "forecast": "Train and evaluate forecasts on a job log.",
        "wfq": "Search for settings of the policy wfq, show what they mean, and set them.",
        "oracle": "Compute the best schedule possible with full knowledge of the future.",
        "cells": "Show clusters that are divided into cells.",
        "chronus": "Plan leases, place jobs and estimate run times as policy chronus does.",
        "strl": "Solve requests for nodes and times that are written in STRL.",
    },
}
