"use strict";
const EVERY_MS = 700, WHILE_PRESSED_MS = 150;
const PORTUGUESE = {
  "Simulated gates": "Catracas simuladas", "Skip to the content": "Ir para o conteúdo", "No gate yet: make one below.": "Ainda não há catraca: crie uma abaixo.",
  "Gate": "Catraca", "State": "Estado", "Gallery": "Galeria", "Last person": "Última pessoa", "Buttons": "Botões", "A person at a gate": "Uma pessoa na catraca",
  "The validator's decision": "Decisão do validador", "by the verdict": "conforme o veredito", "30 seconds late": "30 segundos depois", "lost": "perdida", "Decided": "Decidido",
  "now": "agora", "an hour ago": "há uma hora", "a day ago": "há um dia", "Not a person of the gallery": "Ninguém que a catraca conheça", "Stranger": "Estranho",
  "Poor capture": "Captura ruim", "Not a living hand": "Mão não viva", "No person is on file: your back office makes one with POST /v1/subjects.": "Não há pessoa cadastrada: seu back office cria uma com POST /v1/subjects.",
  "Older people are not listed; palmctl cloud simulate pass --subject-id shows any palm.": "As pessoas mais antigas não estão na lista; palmctl cloud simulate pass --subject-id mostra qualquer palma.",
  "An enrolment session": "Uma sessão de cadastro", "Short code, or what the QR code says": "Código curto, ou o texto do código QR", "Seed (optional)": "Semente (opcional)",
  "Finish with palms": "Concluir com palmas", "No capture is good enough": "Nenhuma captura é boa o bastante", "Another gate": "Outra catraca", "Device": "Dispositivo", "Model": "Modelo",
  "with a turn sensor": "com sensor de giro", "Make the gate": "Criar a catraca", "Events": "Eventos", "lives": "ativa", "no contact": "sem contato", "wiped": "apagada",
  "palms": "palmas", "waiting uploads": "envios pendentes", "none yet": "nenhuma ainda", "a person not listed here": "uma pessoa fora desta lista", "no decision": "sem decisão", "passed": "passou",
  "did not pass": "não passou", "Passed": "Passou", "Did not pass": "Não passou", "Sync": "Sincronizar", "Mail": "Correio", "Revoke": "Revogar", "Show palm": "Mostrar palma", "under way": "em andamento",
  "the decision is lost": "a decisão se perdeu", "not yet delivered": "ainda não entregue", "enrolment": "cadastro", "gallery": "galeria", "a record for the outbox": "um registro para o outbox",
  "registered": "registrada", "revoked": "revogada", "result": "resultado", "The page has ended; start it again with palmctl cloud simulate page": "A página terminou; inicie de novo com palmctl cloud simulate page",
  "pending_enrollment": "à espera do cadastro", "active": "cadastro ativo", "blocked": "bloqueada",
};
const STATES = { lives: ["good", "lives"], lost: ["warn", "no contact"], wiped: ["bad", "wiped"] };
const TONES = { accept: "good", reject: "bad", abstain: "warn" };
let version = "", pressed = 0, noticed = 0, begun = false, hurry = false, wake = () => {};

function write(element, text) { if (element.textContent !== text) element.textContent = text; }
function show(element, tone, ...inside) {
  const shown = make("div", tone, ...inside);
  if (element.innerHTML !== shown.innerHTML || element.className !== tone) { element.className = tone; element.replaceChildren(...shown.childNodes); }
}

// Elements stay while what they show changes: the focus stays too.
function keep(list, items, key, build, draw) {
  const known = new Map([...list.children].map((element) => [element.dataset.key, element]));
  items.forEach((item, place) => {
    let element = known.get(String(key(item)));
    if (!element) { element = build(item); element.dataset.key = key(item); }
    known.delete(element.dataset.key);
    if (list.children[place] !== element) list.insertBefore(element, list.children[place] || null);
    draw(element, item);
  });
  for (const gone of known.values()) gone.remove();
}

// ---- the gates

function cell(tag, label) {
  const element = make(tag, "", make("div"));
  element.dataset.label = say(label);
  return element;
}

function buildGate(gate) {
  const row = make("tr"), head = cell("th", "Gate"), does = cell("td", "Buttons");
  head.scope = "row";
  head.firstChild.append(make("span", "name", gate.device_id), make("span", "note", gate.gate_id));
  does.firstChild.className = "row";
  const sensor = gate.passage_sensor ? [["passage", "Passed", {}], ["passage", "Did not pass", { not_passed: true }]] : [];
  for (const [verb, word, options] of [...sensor, ["sync", "Sync", {}], ["mail", "Mail", {}], ["revoke", "Revoke", {}]]) {
    const button = make("button", verb === "revoke" ? "danger" : "", say(word));
    button.type = "button";
    button.setAttribute("aria-label", `${say(word)}: ${gate.device_id}`);
    button.addEventListener("click", () => press(verb, gate.device_id, options));
    does.firstChild.append(button);
  }
  row.append(head, cell("td", "State"), cell("td", "Gallery"), cell("td", "Last person"), does);
  return row;
}

function drawGate(row, gate) {
  const [tone, word] = STATES[gate.state], cells = [...row.children].map((one) => one.firstChild), last = gate.last;
  row.className = tone;
  show(cells[1], "", make("span", `state ${tone}`, say(word)), gate.reason ? make("span", "note", gate.reason) : "",
    gate.unsent ? make("span", "note", `${gate.unsent} ${say("waiting uploads")}`) : "");
  show(cells[2], "gallery", `${gate.gallery}, ${gate.palms} ${say("palms")}`, make("code", "note", gate.head16));
  if (!last) show(cells[3], "none", say("none yet"));
  else {
    const who = last.who || (last.result === "MATCH" ? say("a person not listed here") : "");
    const end = [last.outcome || say("no decision"), ...(last.passed === null ? [] : [say(last.passed ? "passed" : "did not pass")])].join(", ");
    show(cells[3], "", make("span", "who", `${last.decision} ${last.result}${who ? ` · ${who}` : ""}`),
      make("span", "note", `#${last.verdict_seq} → ${end} · ${new Date(last.decided_at_ms).toLocaleString(language, { dateStyle: "short", timeStyle: "short" })}`));
  }
  for (const button of row.querySelectorAll("button")) button.disabled = gate.state === "wiped";
}

function drawChoice(select, gates) {
  keep(select, gates, (gate) => gate.device_id, (gate) => new Option(gate.device_id), () => {});
}

// ---- the people

function buildPerson(person) {
  const item = make("li"), name = make("span", "name", person.external_ref, make("span", "note"));
  const button = make("button", "", say("Show palm"));
  button.type = "button";
  button.setAttribute("aria-label", `${say("Show palm")}: ${person.external_ref}`);
  button.addEventListener("click", () => passage({ subject_id: person.subject_id }));
  item.append(name, button);
  return item;
}

// ---- the events

const GISTS = {
  pass: (told) => [`${told.decision} ${told.result} → ${told.outcome || say("the decision is lost")}${told.delivered ? "" : `, ${say("not yet delivered")}`}`, TONES[told.decision]],
  passage: (told) => [say(told.passed ? "passed" : "did not pass"), ""],
  enrol: (told) => [`${say("enrolment")}: ${told.status}`, { completed: "good", review: "review", failed: "bad" }[told.status]],
  sync: (told) => (told.wiped ? [`${say("wiped")}: ${told.wiped.reason}`, "bad"] : [`${say("gallery")} ${told.gallery.epoch}.${told.gallery.seq}, ${told.gallery.palms} ${say("palms")}`, ""]),
  mail: () => [say("a record for the outbox"), ""],
  gate: () => [say("registered"), "good"],
  revoke: () => [say("revoked"), "warn"],
};
function gist(event) {
  if (event.kind === "pressed") return [`${say("under way")} …`, "quiet"];
  if (event.kind === "done") return GISTS[event.verb](event.result);
  return [say(event.text), { failed: "bad", wiped: "bad", lives: "good" }[event.kind] || ""];
}

function buildEvent(event) {
  const item = make("li"), time = make("time", "", new Date(event.at_ms).toLocaleTimeString(language));
  item.append(time, make("span", "gist"));
  if (event.command) item.append(make("code", "", event.command));
  return item;
}

function drawEvent(item, event) {
  const [text, tone] = gist(event);
  item.className = tone || "quiet";
  const line = event.device_id && !text.startsWith(event.device_id) ? `${event.device_id}: ${text}` : text;
  write(item.children[1], line);
  if (event.result && !item.querySelector("details")) {
    item.append(make("details", "", make("summary", "", say("result")), make("pre", "", JSON.stringify(event.result, null, 2))));
  }
  if (event.verb && event.kind !== "pressed" && event.number > noticed) {
    noticed = event.number;
    if (begun) notice(line, tone);
  }
}

function notice(text, tone) { $("notice").className = tone || ""; write($("notice"), text); }

// ---- the buttons

async function press(verb, device_id, options) {
  const body = JSON.stringify({ verb, options: { device_id, ...options } });
  const answer = await fetch("press", { method: "POST", headers: { "Content-Type": "application/json" }, body }).catch(() => null);
  if (answer && !answer.ok) notice((await answer.json().catch(() => ({}))).error || String(answer.status), "bad");
  hurry = true;
  wake();
}

function passage(options) {
  const [name, value] = $("decision").value.split("="), ago_s = $("ago").value;
  press("pass", $("gate").value, { ...options, ...(ago_s && { ago_s }), ...(name && { [name]: value || true }) });
}

function enrol(options) {
  const code = $("code").value.trim(), seed = $("seed").value;
  if (!$("enrol").reportValidity()) return;
  press("enrol", $("enrol-gate").value, { ...(code.startsWith("SVC1:") ? { qr_payload: code } : { short_code: code }), ...(seed && { seed }), ...options });
}

for (const button of all("[data-result]")) button.addEventListener("click", () => passage({ [button.dataset.result]: true }));
$("enrol").addEventListener("submit", (event) => { event.preventDefault(); enrol({}); });
$("fail").addEventListener("click", () => enrol({ fail: true }));
$("make").addEventListener("submit", (event) => {
  event.preventDefault();
  const options = { gate_id: $("gate_id").value, model_id: $("model_id").value, ...($("passage_sensor").checked && { passage_sensor: true }) };
  press("gate", $("device_id").value, options);
});

// ---- the loop

async function news() {
  const answer = await fetch(`news?after=${version}`).catch(() => null);
  if (!answer || (!answer.ok && answer.status !== 204)) { notice(say("The page has ended; start it again with palmctl cloud simulate page"), "bad"); return; }
  if (answer.status === 204) return;
  const told = await answer.json(), living = told.gates.filter((gate) => gate.state !== "wiped");
  version = answer.headers.get("X-About");
  pressed = told.events.filter((event) => event.kind === "pressed").length;
  write($("tenant"), told.tenant_id);
  $("no-gates").hidden = told.gates.length > 0;
  $("gates-table").hidden = !told.gates.length;
  keep($("gates"), told.gates, (gate) => gate.device_id, buildGate, drawGate);
  for (const id of ["gate", "enrol-gate"]) drawChoice($(id), living);
  $("no-people").hidden = told.people.length > 0;
  $("older-people").hidden = !told.older_people;
  keep($("people"), told.people, (person) => person.subject_id, buildPerson, (item, person) => write(item.querySelector(".note"), say(person.status)));
  keep($("events"), told.events, (event) => event.number, buildEvent, drawEvent);
  for (const button of all(".desks button:not(#make button)")) button.disabled = !living.length;
  begun = true;
}

async function follow() {
  for (;;) {
    if (!document.hidden) await news();
    const ms = pressed || hurry ? WHILE_PRESSED_MS : EVERY_MS;
    hurry = false;
    await new Promise((done) => { wake = done; setTimeout(done, ms); });
  }
}
translatePage(); follow();
