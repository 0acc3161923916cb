"""Executes the decisions of ``leader/lease.py`` on a Lease (``coordination.k8s.io/v1``) in the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from elastrain_operator.config import LeaseName
from elastrain_operator.kube.access import Tenure
from elastrain_operator.kube.answers import NO_ANSWER, ApiError, NotLeading
from elastrain_operator.kube.client import Kube
from elastrain_operator.leader import lease
from elastrain_operator.leader.lease import LeaseObservation, Record, Step, Terms

log = structlog.get_logger(__name__)


class Leases:
    """Reads and writes Leases as raw dicts. Every call takes at most ``seconds`` and may raise ``ApiError``."""

    def __init__(self, kube: Kube) -> None:
        """``kube``: a client without a tenure, since the tenure follows from the Lease."""
        self._kube = kube

    async def get(self, lease: LeaseName, seconds: float) -> dict[str, Any] | None:
        """The Lease, or None if the API server reports that it does not exist."""
        try:
            return await self._kube.once("GET", _lease_path(lease), f"read lease {lease}", None, seconds)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def create(self, lease: LeaseName, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Code 409: it exists."""
        return await self._kube.once("POST", _lease_path(lease, whole=False), f"create lease {lease}", body, seconds)

    async def replace(self, lease: LeaseName, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Code 409: it has changed since the ``resourceVersion`` of ``body``. Code 404: it is gone."""
        return await self._kube.once("PUT", _lease_path(lease), f"renew lease {lease}", body, seconds)


def _lease_path(lease: LeaseName, whole: bool = True) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{lease.namespace}/leases"
    return f"{path}/{lease.name}" if whole else path


class Elector:
    """One replica's part in the election. Lives in one event loop; after it has led, it never leads again."""

    def __init__(
        self,
        leases: Leases,
        lease: LeaseName,
        identity: str,
        tenure: Tenure,
        terms: Terms,
        *,
        clock: Callable[[], float] = time.monotonic,
        silence: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``identity``: of this process; no other process ever has the same. ``clock``: the tenure's. ``silence``:
        seconds since the loop that serves the jobs last ran."""
        self._leases = leases
        self._lease = lease
        self._tenure = tenure
        self._terms = terms
        self._clock = clock
        self._silence = silence
        self._observation = LeaseObservation(identity)
        self._writing = asyncio.Lock()
        self._trouble = ""
        self._acquired = ""
        """When this replica acquired the Lease, as written into it."""

    @property
    def holder(self) -> str:
        """The leader as last seen by this replica; empty: none, or unknown yet."""
        return self._observation.record.holder if self._observation.record else ""

    async def acquire(self) -> None:
        """Stand by until this replica leads, through any outage of the API server."""
        while self._observation.renewed is None:
            action = lease.decide(self._observation, self._clock(), self._terms)
            if action.step is Step.WAIT:
                await asyncio.sleep(action.seconds)
                await self._tried(self._look)
            else:
                await self._tried(self._write)
        log.info("leading", lease=str(self._lease), identity=self._observation.me)

    async def keep(self) -> str:
        """Renew until this replica no longer leads; returns the reason. The tenure has expired before, or ends now."""
        while True:
            action = lease.decide(self._observation, self._clock(), self._terms, self._silence())
            if action.step is Step.STEP_DOWN:
                self._tenure.end()
                return action.why
            if action.step is Step.WAIT:
                await asyncio.sleep(action.seconds)
            else:
                await self._tried(self._write)

    async def prove(self) -> None:
        """Renew now: if this returns, this replica held the Lease at some time after the call.

        Raises :class:`NotLeading` if it does not hold it, ``ApiError`` if the API server does not answer.
        """
        await self._write()
        what = "prove that this operator leads"
        if lease.decide(self._observation, self._clock(), self._terms).step is Step.STEP_DOWN:
            raise NotLeading(what)
        self._tenure.seconds_left(what)

    async def release(self) -> None:
        """Release the Lease, so that another replica leads at once. To be called when no write is in flight.

        A failure is harmless: the Lease then expires.
        """
        async with self._writing:
            self._tenure.end()
            record = self._observation.record
            if self._observation.renewed is None or record is None or record.holder != self._observation.me:
                return
            await self._give_back(record)

    # ---- inside ----------------------------------------------------------------------------------------------------
    async def _give_back(self, record: Record) -> None:
        body = self._body(record, holder="", transitions=record.transitions)
        try:
            await self._leases.replace(self._lease, body, self._terms.attempt)
            log.info("lease released", lease=str(self._lease))
        except ApiError as error:
            log.warning("lease not released, it will run out", lease=str(self._lease), error=str(error))

    async def _tried(self, call: Callable[[], Any]) -> None:
        """An attempt that may fail: logged once per kind of error, and repeated after a delay."""
        try:
            await call()
            self._trouble = ""
        except ApiError as error:
            if str(error) != self._trouble:
                log.warning("cannot use the lease", lease=str(self._lease), error=str(error))
            self._trouble = str(error)
            await asyncio.sleep(lease.retry_after(self._terms, answered=error.reason != NO_ANSWER))

    async def _look(self) -> None:
        body = await self._leases.get(self._lease, lease.attempt_seconds(self._observation, self._clock(), self._terms))
        self._observation = lease.saw(self._observation, self._record(body) if body else None, self._clock())

    async def _write(self) -> None:
        """Acquire or renew; if the Lease has changed since it was seen, read it instead."""
        async with self._writing:
            known = self._observation.record
            fresh = known is None or known.holder != self._observation.me
            if fresh and self._observation.renewed is not None:
                raise NotLeading("renew the lease")  # another replica holds it now
            transitions = (known.transitions if known else 0) + (1 if fresh and known else 0)
            body = self._body(known, self._observation.me, transitions)
            sent = self._clock()
            try:
                answer = await self._send(known, body)
            except ApiError as error:
                if error.code not in (404, 409):  # deleted, or changed by another replica
                    raise
                await self._look()
                return
            self._observation = lease.wrote(self._observation, self._record(answer), sent, self._clock())
            until = lease.leads_until(self._observation, self._terms)
            assert until is not None, "this replica has just written it"
            self._tenure.extend(until)
            self._acquired = body["spec"]["acquireTime"]

    async def _send(self, known: Record | None, body: dict[str, Any]) -> dict[str, Any]:
        call = self._leases.create if known is None else self._leases.replace
        return await call(self._lease, body, lease.attempt_seconds(self._observation, self._clock(), self._terms))

    def _body(self, known: Record | None, holder: str, transitions: int) -> dict[str, Any]:
        # The times serve users and other tools. No replica compares them with its clock.
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(round(self._terms.duration), 1),
            "leaseTransitions": transitions,
            "renewTime": stamp,
            "acquireTime": self._acquired or stamp,
        }
        version = {"resourceVersion": known.version} if known else {}
        metadata = {"name": self._lease.name, "namespace": self._lease.namespace, **version}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _record(self, body: dict[str, Any]) -> Record:
        spec = body.get("spec") or {}
        return Record(
            version=body["metadata"]["resourceVersion"],
            holder=spec.get("holderIdentity") or "",
            duration=float(spec.get("leaseDurationSeconds") or self._terms.duration),
            transitions=int(spec.get("leaseTransitions") or 0),
        )
