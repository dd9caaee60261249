// A back office in TypeScript on the generated types: node back_office.js URL; the environment's API_KEY is its key.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./service.js";

type Subject = components["schemas"]["Subject"];

const service = createClient<paths>({
  baseUrl: process.argv[2],
  headers: { Authorization: `Bearer ${process.env.API_KEY}` },
});
const once = (key: string) => ({ header: { "Idempotency-Key": key } });

const people: Subject[] = [];
for (const name of ["typescript-a", "typescript-b", "typescript-c"]) {
  const made = await service.POST("/v1/subjects", { params: once(name), body: { external_ref: name } });
  assert(made.data, made.error?.code);
  people.push(made.data);
}
const first = { path: { subject_id: people[0].subject_id } };

const consent = await service.POST("/v1/subjects/{subject_id}/consents", {
  params: { ...first, ...once("typescript-consent") },
  body: {
    purpose: "identification",
    evidence: {
      method: "partner_app",
      terms_version: "v1",
      accepted_at: "2026-01-31T12:00:00Z",
      evidence_sha256: "0".repeat(64),
    },
  },
});
assert.equal(consent.data?.status, "granted");

const session = await service.POST("/v1/enrollment-sessions", {
  params: once("typescript-session"),
  body: { subject_id: people[0].subject_id, hands_required: ["L"] },
});
assert.equal(session.data?.subject_id, people[0].subject_id);
assert(session.data.qr_payload.startsWith("SVC1:ENR:"));

const found: Subject[] = [];
let cursor: string | undefined;
do {
  const page = await service.GET("/v1/subjects", { params: { query: { limit: 2, cursor } } });
  assert(page.data, page.error?.code);
  found.push(...page.data.data);
  cursor = page.data.next_cursor ?? undefined;
} while (cursor);
assert.deepEqual(found.map((one) => one.subject_id), people.map((one) => one.subject_id).reverse());
assert.deepEqual(found.at(-1)?.consents.map((one) => one.purpose), ["identification"]);

const devices = await service.GET("/v1/devices");
assert.deepEqual(devices.data?.data.map((one) => [one.device_id, one.status, one.revoked_at]), [["gate-1", "active", null]]);

for (const { subject_id } of people) {
  const erased = await service.DELETE("/v1/subjects/{subject_id}", { params: { path: { subject_id } } });
  assert(erased.data, erased.error?.code);
  const { receipt_id, signed_receipt } = erased.data;
  const again = await service.GET("/v1/erasure-receipts/{receipt_id}", { params: { path: { receipt_id } } });
  assert.deepEqual(again.data?.signed_receipt, signed_receipt);
}

const gone = await service.GET("/v1/subjects/{subject_id}", { params: first });
assert(gone.error);
// @ts-expect-error: the compiler knows the codes of this operation.
assert(gone.error.code !== "no_such_code");
assert(gone.error.status === 404 && gone.error.code === "subject_not_found" && !gone.error.retryable);
