"""Many devices that wait for one change, and a large gallery paged to one device."""

import json
import resource
import selectors
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.tenancy import persons, tenants
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault, seal
from gallery.stream import Entry, entry_sha256, state_of
from tools.palmctl.bench.daemon import BenchFailed, rss_bytes
from tools.rig.bench.cloud_server import (
    MODEL_ID,
    BenchDevice,
    BenchTenant,
    ServerProcess,
    enrolment_body,
    on_store,
)
from tools.rig.bench.http_load import LoadConnection, connections, cpu_s, drive

_DELTAS = "/v1/gallery/deltas"
_HANDS = "LR"


def register(server: ServerProcess, count: int, prefix: str) -> list[BenchDevice]:
    """Devices, each with its own keys, registered over HTTP; their tokens are made in one transaction."""
    names = [f"{prefix}-{number}" for number in range(count)]
    environment = server.tenant.environment

    def make_tokens(tx: Tx, _vault: Vault, now_ms: int) -> list[str]:
        return [operator.create_token(tx, environment, name, 3600, now_ms)["token"] for name in names]

    tokens = on_store(server.data, make_tokens)
    devices = [BenchDevice(server.host, name) for name in names]
    pairs = zip(devices, tokens, strict=True)
    with connections(server.address, 4) as opened:
        drive(opened, [device.registration(token) for device, token in pairs], 201)
    return devices


def measure_waiting(
    server: ServerProcess,
    devices: list[BenchDevice],
    meanwhile: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """All devices wait; one person is erased; how long until each has the tombstone.

    ``meanwhile`` is called while they wait, and what it returns is in the figures.
    """
    allow_files(2 * len(devices) + 200)
    subject_id = _enrol(server, devices[0])
    with connections(server.address, 1) as opened:
        request = devices[0].request("GET", _DELTAS, query="epoch=1&after_seq=0")
        page = json.loads(drive(opened, [request], 200)[0])
    seq = page["head"]["head_obj"]["seq"]
    before = rss_bytes(server.pid)
    with ExitStack() as stack:
        cpu_before = cpu_s(server.pid)
        waiting = []
        for device in devices:
            # Each asks as soon as it is connected: who says nothing for ten seconds is hung up on.
            waiting.append(stack.enter_context(closing(LoadConnection(server.address))))
            waiting[-1].send(device.request("GET", _DELTAS, query=f"epoch=1&after_seq={seq}&wait_s=55"))
        await_idle(server)
        cpu_to_wait = cpu_s(server.pid) - cpu_before
        held = rss_bytes(server.pid)
        found = meanwhile()
        cpu_before = cpu_s(server.pid)
        with connections(server.address, 1) as (partner,):
            begun = time.perf_counter()
            partner.send(server.partner_request("DELETE", f"/v1/subjects/{subject_id}"))
            took = sorted(_answers(waiting, begun))
            if partner.answer()[0] != 200:
                raise BenchFailed("the erasure was refused")
        cpu_to_wake = cpu_s(server.pid) - cpu_before
    return {
        "devices": len(devices),
        "answered": len(took),
        "p50_ms": round(median(took) * 1000),
        "p99_ms": round(quantiles(took, n=100, method="inclusive")[98] * 1000),
        "last_ms": round(took[-1] * 1000),
        "bytes_a_device": round((held - before) / len(devices)),
        "cpu_us_to_wait": round(cpu_to_wait / len(devices) * 1e6),
        "cpu_us_to_answer": round(cpu_to_wake / len(devices) * 1e6),
        "meanwhile": found,
    }


def _answers(waiting: list[LoadConnection], begun: float) -> list[float]:
    """Seconds from ``begun`` until each connection had its tombstone."""
    took = []
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(waiting):
            selector.register(connection, selectors.EVENT_READ, number)
        while selector.get_map():
            ready = selector.select(timeout=10)
            if not ready:
                raise BenchFailed(f"{len(selector.get_map())} waiting devices were not answered in 10 s")
            for key, _ in ready:
                connection = waiting[key.data]
                status, body = connection.answer()
                took.append(time.perf_counter() - begun)
                if status != 200 or [delta["op"] for delta in json.loads(body)["data"]] != ["tombstone"]:
                    raise BenchFailed(f"a waiting device was answered {status} without the tombstone")
                selector.unregister(connection)
    return took


def await_idle(server: ServerProcess, share: float = 0.17) -> None:
    """Wait until the server uses less than this share of a core: every device is in its long-poll."""
    for _ in range(300):
        before = cpu_s(server.pid)
        time.sleep(0.3)
        if cpu_s(server.pid) - before < 0.3 * share:
            return
    raise BenchFailed("the server does not come to rest")


def _enrol(server: ServerProcess, device: BenchDevice) -> str:
    """A person with a palm, through the routes; the subject_id."""
    with connections(server.address, 1) as opened:

        def partner(path: str, body: dict[str, Any]) -> dict[str, Any]:
            (data,) = drive(opened, [server.partner_request("POST", path, body)], 201)
            answer: dict[str, Any] = json.loads(data)
            return answer

        subject_id: str = partner("/v1/subjects", {"external_ref": "waited-for"})["subject_id"]
        session = partner("/v1/enrollment-sessions", {"subject_id": subject_id, "hands_required": ["L"]})
        vector = np.zeros(512, "<f4")
        vector[0] = 1
        body = enrolment_body(session["token"], {"L": vector.tobytes()})
        drive(opened, [device.request("POST", "/v1/enrollments", body=body)], 201)
    return subject_id


def person_id(number: int) -> str:
    """The subject_id of a person that ``fill_gallery`` has made."""
    return f"00000000-0000-4000-8000-{number:012x}"


def fill_gallery(data: Path, tenant: BenchTenant, templates: int) -> None:
    """So many templates, two a person, put into the store as enrolments a month ago would have left them."""
    environment = tenant.environment

    def insert(tx: Tx, vault: Vault, now_ms: int) -> None:
        rng = np.random.default_rng(7)
        state = gallery_log.state_of_stream(tx, environment)
        held = tenants.load(tx, vault, tenant.tenant_id)
        for number in range(templates):
            if number % 2 == 0:
                person = _insert_person(tx, vault, held, environment, number=number // 2, now_ms=now_ms)
            vector = rng.standard_normal(512, dtype=np.float32)
            vector /= np.linalg.norm(vector)
            entry = Entry(
                template_id=rng.bytes(16).hex(),
                subject_ref=person.subject_ref,
                hand=_HANDS[number % 2],
                model_id=MODEL_ID,
                vector=vector.astype("<f4").tobytes(),
                onboard_ref=None,
                suspended=False,
            )
            tx.run(
                """INSERT INTO templates (template_id, stream, epoch, subject_id, hand, model_id, vector_ct,
                                          entry_digest, added_seq)
                   VALUES (:template_id, :stream, :epoch, :subject_id, :hand, :model_id, :vector_ct, :digest,
                           :seq)""",
                template_id=entry.template_id,
                stream=environment.stream,
                epoch=state.epoch,
                subject_id=person.subject_id,
                hand=entry.hand,
                model_id=MODEL_ID,
                vector_ct=seal(person.key, entry.vector, entry.template_id.encode()),
                digest=entry_sha256(entry.to_obj()),
                seq=state.seq,
            )
        tx.run(
            "UPDATE streams SET count = count + :added WHERE stream = :stream",
            added=templates,
            stream=environment.stream,
        )

    on_store(data, insert)


def _insert_person(
    tx: Tx, vault: Vault, tenant: tenants.Tenant, environment: Environment, *, number: int, now_ms: int
) -> persons.SubjectIdentity:
    subject_id = person_id(number)
    key, key_ct = persons.new_key(tx, vault, subject_id)
    name = f"filled-{number}"
    person = persons.SubjectIdentity(
        subject_id, tenant.subject_ref(subject_id), key, name, None, suspended=False
    )
    tx.run(
        """INSERT INTO subjects (subject_id, tenant_id, livemode, subject_ref, status, external_ref_mac,
                                 person_key_ct, refs_ct, has_onboard_ref, model_id, hands, enrolled_ms,
                                 created_ms, updated_ms)
           VALUES (:subject_id, :tenant_id, :livemode, :subject_ref, 'active', :mac, :key_ct, :refs_ct, 0,
                   :model_id, '["L", "R"]', :now_ms, :now_ms, :now_ms)""",
        subject_id=subject_id,
        subject_ref=person.subject_ref,
        mac=persons.external_ref_mac(vault, environment, name),
        key_ct=key_ct,
        refs_ct=persons.seal_refs(key, subject_id, name, None),
        model_id=MODEL_ID,
        now_ms=now_ms,
        **environment.params,
    )
    return person


def measure_snapshot(server: ServerProcess, device: BenchDevice) -> dict[str, Any]:
    """A device takes the whole gallery page by page and compares the state; what it costs the server."""
    digests: list[bytes] = []
    before, cpu_before, begun = rss_bytes(server.pid), cpu_s(server.pid), time.perf_counter()
    most, pages, sent, cursor = before, 0, 0, ""
    times = []
    with connections(server.address, 1) as opened:
        while True:
            asked = time.perf_counter()
            request = device.request("GET", "/v1/gallery/snapshot", query=cursor)
            (body,) = drive(opened, [request], 200)
            times.append(time.perf_counter() - asked)
            page = json.loads(body)
            digests += [entry_sha256(entry) for entry in page["data"]]
            pages, sent, most = pages + 1, sent + len(body), max(most, rss_bytes(server.pid))
            if not page["has_more"]:
                break
            cursor = f"cursor={page['next_cursor']}"
    head = page["head"]["head_obj"]
    if state_of(digests).hex() != head["state"] or head["count"] != len(digests):
        raise BenchFailed("the snapshot's pages do not make the state that its head names")
    return {
        "templates": len(digests),
        "pages": pages,
        "mebibytes": round(sent / 2**20, 1),
        "seconds": round(time.perf_counter() - begun, 1),
        "first_page_ms": round(times[0] * 1000),
        "page_p50_ms": round(median(times) * 1000, 1),
        "server_cpu_us_a_template": round((cpu_s(server.pid) - cpu_before) / len(digests) * 1e6),
        "rss_before_mib": round(before / 2**20, 1),
        "rss_growth_mib": round((most - before) / 2**20, 1),
    }


def allow_files(count: int) -> None:
    """Let this process open so many files. BenchFailed where the system does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (-1, resource.RLIM_INFINITY) and hard < count:
        raise BenchFailed(f"this process may open {hard} files, {count} are needed: raise ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
