"use strict";
const MOST_ROWS = 400, EVERY_MS = 150;
const PORTUGUESE = {
  "Playground": "Simulador", "Go to the gate": "Ir para a catraca", "Virtual time": "Tempo virtual", "Pace": "Ritmo", "Pause": "Pausar",
  "Advance six hours": "Avançar seis horas", "Seed": "Semente", "New run": "Nova execução", "Save run": "Salvar execução", "Replay a file": "Repetir um arquivo",
  "Six hours pass": "Seis horas passam", "The gate and its service": "A catraca e o serviço", "Service": "Serviço", "Gallery": "Galeria", "People": "Pessoas",
  "network": "rede", "cable": "cabo", "Device": "Dispositivo", "Validator": "Validador", "Fresh for": "Válida por", "Waiting uploads": "Envios pendentes",
  "Cut the network": "Cortar a rede", "Restore the network": "Religar a rede", "Pull the cable": "Desligar o cabo", "Plug the cable in": "Ligar o cabo",
  "Steal the device": "Roubar o dispositivo", "Session": "Sessão", "Last verdict": "Veredito", "Health words": "Palavras de saúde",
  "What the device's camera sees": "O que a câmera do dispositivo vê", "Show a palm": "Mostre uma palma",
  "Everything below is a generated person. The device reads the picture, signs what it decided, and the validator opens or does not.":
    "As pessoas abaixo são geradas. O dispositivo lê a imagem e assina o que decidiu; o validador abre ou não.",
  "What is real here, and what is simulated": "O que é real aqui, e o que é simulado", "Real": "Real", "Simulated": "Simulado",
  ": the programs. Each picture goes through the device's recogniser and its shipped model. Gallery and journal are its encrypted SQLite files. Every byte on the cable is LINK/1, with Ed25519 signatures that both ends verify. The carrier signs its HTTP requests, and the reference server's application answers them from its database.":
    ": os programas. Cada imagem passa pelo reconhecedor do dispositivo, com o modelo que o acompanha. Galeria e diário são os seus arquivos SQLite cifrados. Cada byte no cabo é LINK/1, com assinaturas Ed25519 que as duas pontas verificam. O transportador assina as requisições HTTP, e a aplicação do servidor de referência responde a partir do seu banco de dados.",
  ": people and camera (generated pictures, ten a second), time (it can jump), the cable (memory at 921,600 baud), the network (no TCP, no TLS), the programs' separation (they share this process), and measured durations (zero). The people were enrolled at another desk, with the same model, before the run began.":
    ": pessoas e câmera (imagens geradas, dez por segundo), o tempo (que pode saltar), o cabo (memória, a 921.600 baud), a rede (sem TCP nem TLS), a separação entre os programas (rodam neste mesmo processo) e as durações medidas (zero). As pessoas foram cadastradas em outro posto, com o mesmo modelo, antes do início da execução.",
  "What is said, decoded": "O que é dito, decodificado", "Show": "Mostrar", "Decoded live": "Decodificado ao vivo", "story": "história", "requests": "requisições", "heartbeats": "batimentos",
  "Events so far": "Eventos até agora", "Events, newest first": "Eventos, os mais novos primeiro", "starting": "iniciando", "events": "eventos",
  "closed": "fechada", "open": "aberta", "asks": "pede a palma", "serving": "em serviço", "not serving": "fora de serviço", "stolen": "roubado", "wiped": "apagado",
  "Show palm": "Mostrar palma", "Poor capture": "Captura ruim", "Erase": "Apagar", "Stranger": "Estranho", "another each time": "outro a cada vez", "enrolled": "cadastro ativo", "erased": "cadastro apagado",
  "left palm": "palma esquerda", "right palm": "palma direita", "no hand in view": "nenhuma mão à vista", "a hand": "uma mão", "quality": "qualidade",
  "up": "ativa", "down": "inativa", "expired": "vencida", "connecting": "conectando",
  "opens": "abre", "stays closed": "continua fechada", "score": "pontuação", "verdict": "veredito", "signed by the device, verified by the validator": "assinado pelo dispositivo, verificado pelo validador",
  "left hand": "mão esquerda", "right hand": "mão direita",
  "Recognised: the signed verdict names a person of the gallery.": "Reconhecimento confirmado: o veredito assinado indica uma pessoa da galeria.",
  "A live palm that the gallery does not know.": "Uma palma viva que a galeria não conhece.",
  "No picture was good enough; the device decides nothing about who it was.": "Nenhuma imagem foi boa o bastante; o dispositivo não decide de quem era a palma.",
  "The gallery is older than six hours: an erased person could still be in it, so no one is recognised.": "A galeria tem mais de seis horas: uma pessoa apagada ainda poderia estar nela, por isso ninguém é reconhecido.",
  "The device is not ready to decide.": "O dispositivo não está pronto para decidir.",
  "shows a palm": "mostra uma palma", "A stranger shows a palm": "Uma pessoa desconhecida mostra uma palma", "a dark, blurred capture of": "uma captura escura e borrada de",
  "the validator cannot ask: no session": "o validador não pode pedir: não há sessão", "The validator asks for a palm": "O validador pede uma palma",
  "The turnstile is passed": "A pessoa passou pela catraca", "The turnstile was not passed": "Ninguém passou pela catraca", "The request ended without a verdict": "O pedido terminou sem veredito",
  "The cable is pulled": "O cabo foi desligado", "The cable is plugged in": "O cabo foi ligado", "The network is cut": "A rede foi cortada", "The network is back": "A rede voltou",
  "Both ends have proved who they are": "As duas pontas se autenticaram", "The session on the cable is down": "A sessão no cabo caiu", "Six hours pass": "Passam seis horas",
  "is erased at the service; receipt": "foi apagada no serviço; recibo", "is gone from the device's gallery": "não está mais na galeria do dispositivo",
  "The device is stolen; its operator revokes it": "O dispositivo foi roubado; o operador o revoga", "The service has revoked the device": "O serviço revogou o dispositivo",
  "The device has destroyed its keys, its gallery and its journal": "O dispositivo destruiu as suas chaves, a galeria e o diário", "The device's health": "Saúde do dispositivo", "well": "tudo bem",
  "The device's gallery is at": "A galeria do dispositivo está em", "Wiped. On its disk is left:": "Apagado. No disco restou:",
  "Stolen: it has no contact yet. It keeps a sealed gallery, recognises no one after six hours, and destroys itself on its first contact.": "Roubado: ainda sem contato. Guarda uma galeria cifrada, não reconhece ninguém depois de seis horas e se destrói no primeiro contato.",
  "Six hours are passing": "Seis horas estão passando", "A recorded run is being replayed": "Uma execução gravada está sendo repetida",
  "Replayed: every event is the same, byte for byte. The run goes on from here.": "Repetida: todos os eventos são iguais, byte a byte. A execução continua daqui.",
  "Replayed, and not the same: the file is of another version, or of another kind of processor.": "Repetida, e não é igual: o arquivo é de outra versão, ou de outro tipo de processador.",
  "A program of the playground failed:": "Um programa do simulador falhou:", "The playground has ended; start it again with palmctl playground": "O simulador terminou; inicie de novo com palmctl playground",
  "People are being generated and enrolled": "As pessoas estão sendo geradas e cadastradas", "lost": "perdida", "part": "parte", "of": "de",
};
const number = (value) => value.toLocaleString(language);
const WHY = {
  MATCH: "Recognised: the signed verdict names a person of the gallery.", NO_MATCH: "A live palm that the gallery does not know.",
  POOR_CAPTURE: "No picture was good enough; the device decides nothing about who it was.",
  GALLERY_EXPIRED: "The gallery is older than six hours: an erased person could still be in it, so no one is recognised.", NOT_READY: "The device is not ready to decide.",
};
const TONES = { accept: "good", reject: "bad", abstain: "warn" };
let run = 0, last = 0, state = null, shownVerdict = "", shownFrame = "", over = false;

function write(id, text) { if ($(id).textContent !== text) $(id).textContent = text; }
function clock(ms) {
  const s = Math.floor(ms / 1000), two = (value) => String(value).padStart(2, "0");
  return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}
const post = (name, body) => fetch(name, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

// ---- the stage

function drawPeople() {
  const people = [...state.people.map((one) => one.name), ""];
  $("people").replaceChildren(...people.map((who) => {
    const item = make("li"), picture = make("img"), text = make("div"), does = make("div", "does");
    picture.src = `palm?run=${run}&who=${encodeURIComponent(who)}`; picture.alt = "";
    text.append(make("strong", "", who || say("Stranger")), make("small", "", say(who ? "enrolled" : "another each time")));
    const buttons = who ? [["palm", "Show palm"], ["poor", "Poor capture"], ["erase", "Erase"]] : [["stranger", "Show palm"]];
    for (const [button, word] of buttons) {
      const made = make("button", button === "erase" ? "danger" : "", say(word));
      made.dataset.button = button; made.dataset.who = who;
      made.setAttribute("aria-label", `${say(word)}: ${who || say("Stranger")}`);
      does.append(made);
    }
    item.dataset.who = who;
    item.append(picture, text, does);
    return item;
  }));
}

function drawState() {
  const { status, service } = state, allowed = new Set(state.allowed), gone = new Set(state.people.filter((one) => one.erased).map((one) => one.name));
  write("clock", clock(state.now_ms));
  const busy = !!replaying;
  for (const button of all("[data-button]")) {
    const erased = button.dataset.button === "erase";
    button.disabled = busy || (erased ? gone.has(button.dataset.who) : !allowed.has(button.dataset.button));
  }
  for (const item of all(".people li")) {
    item.classList.toggle("gone", gone.has(item.dataset.who));
    if (item.dataset.who) item.querySelector("small").textContent = say(gone.has(item.dataset.who) ? "erased" : "enrolled");
  }
  for (const [name, on, off, back, ons] of [["network", state.network, "Cut the network", "Restore the network", ["cut_network", "restore_network"]],
    ["cable", state.cable, "Pull the cable", "Plug the cable in", ["pull_cable", "plug_cable"]]]) {
    const button = document.querySelector(`[data-toggle=${name}]`), word = say(on ? off : back);
    $(`${name}-wire`).classList.toggle("off", !on);
    if (button.textContent !== word) button.textContent = word;
    button.dataset.does = ons[on ? 0 : 1];
    button.disabled = busy || !allowed.has(button.dataset.does);
  }
  write("service-gallery", `${service.epoch} / ${service.seq}`);
  write("service-people", String(state.people.length - gone.size));
  $("validator").className = `node validator ${state.turnstile}`;
  write("turnstile", say(state.turnstile));
  write("session", say(state.session ? "up" : "down"));
  write("last-seq", state.last ? `#${state.last.verdict_seq}` : "–");
  const chip = state.wiped ? ["wiped", "bad"] : state.stolen ? ["stolen", "bad"] : !status ? ["starting", ""] : status.serving ? ["serving", "good"] : ["not serving", "warn"];
  write("device-state", say(chip[0])); $("device-state").className = `chip ${chip[1]}`;
  const gallery = state.wiped ? null : status && status.gallery;
  write("device-gallery", gallery ? `${gallery.epoch} / ${gallery.seq}` : "–");
  write("device-fresh", !gallery ? "–" : gallery.fresh ? clock(gallery.left_s * 1000) : say("expired"));
  write("device-uploads", gallery ? String(status.uploads_waiting) : "–");
  const words = state.wiped || !status ? [] : status.health;
  if ($("health").dataset.words !== words.map((one) => one.word).join()) {
    $("health").dataset.words = words.map((one) => one.word).join();
    $("health").replaceChildren(...words.map((one) => {
      const word = make("span", ["GALLERY_STALE", "REVOKED", "LINK_DOWN", "OFFLINE"].includes(one.word) ? "stop" : "", one.word);
      word.title = one.detail;
      return word;
    }));
  }
  $("wiped").hidden = !state.stolen;
  write("wiped", state.wiped ? `${say("Wiped. On its disk is left:")} ${state.files.join(", ")}` : state.stolen
    ? say("Stolen: it has no contact yet. It keeps a sealed gallery, recognises no one after six hours, and destroys itself on its first contact.") : "");
  drawVerdict();
  $("progress").hidden = state.advance_left_ms === 0;
  $("progress").value = 1 - state.advance_left_ms / 21600000;
}

function drawVerdict() {
  const told = state.last;
  const key = told ? told.verdict_ref : "";
  if (key === shownVerdict) return;
  shownVerdict = key;
  $("verdict").className = `verdict ${told ? TONES[told.decision] : ""}`;
  if (!told) { write("outcome", say("Show a palm")); write("why", ""); write("proof", ""); return; }
  const who = told.who ? `${told.who}, ${say(told.hand === "L" ? "left hand" : "right hand")}` : "";
  write("outcome", `${told.outcome}: ${say(told.outcome === "LIBERAR" ? "opens" : "stays closed")}`);
  write("why", `${who ? who + ". " : ""}${say(WHY[told.result] || told.result)}`);
  write("proof", `${say("verdict")} #${told.verdict_seq} ${told.decision} ${told.result} · ${say("score")} ${(told.score_q / 10000).toLocaleString(language, { minimumFractionDigits: 4 })} · ${told.verdict_ref} · ${say("signed by the device, verified by the validator")}`);
}

function notice(told) {
  const text = over ? say("The playground has ended; start it again with palmctl playground")
    : told.failed ? `${say("A program of the playground failed:")} ${told.failed}`
    : !told.state.people ? say("People are being generated and enrolled")
    : told.replay && told.replay.same === null ? `${say("A recorded run is being replayed")}: ${clock(told.state.now_ms)} / ${clock(told.replay.until_ms)}`
    : told.state.advance_left_ms ? `${say("Six hours are passing")}: ${clock(told.state.advance_left_ms)}`
    : told.replay ? say(told.replay.same ? "Replayed: every event is the same, byte for byte. The run goes on from here." : "Replayed, and not the same: the file is of another version, or of another kind of processor.") : refusal;
  $("notice").hidden = !text;
  $("notice").className = over || told.failed || (text && text === refusal) || (told.replay && told.replay.same === false) ? "bad" : told.replay && told.replay.same ? "good" : "";
  write("notice", text);
}

function fly(wire, way) {
  const dot = $(wire).querySelector(way === "right" ? ".up" : ".down");
  dot.classList.remove("run-right", "run-left");
  void dot.offsetWidth;
  dot.classList.add(`run-${way}`);
}

// ---- the events

const STORIES = {
  shown: (e) => [e.how === "stranger" ? say("A stranger shows a palm") : e.how === "poor" ? `${say("a dark, blurred capture of")} ${e.who}` : `${e.who} ${say("shows a palm")}`, ""],
  asks: () => [say("The validator asks for a palm"), ""],
  verdict: (e) => [`${e.decision} ${e.result}${e.who ? " · " + e.who : ""} → ${e.outcome}`, TONES[e.decision]],
  passage: (e) => [say(e.passed ? "The turnstile is passed" : "The turnstile was not passed"), ""],
  request_ended: (e) => [`${say("The request ended without a verdict")}: ${e.why}`, "warn"],
  cable: (e) => [say(e.plugged ? "The cable is plugged in" : "The cable is pulled"), e.plugged ? "" : "warn"],
  network: (e) => [say(e.up ? "The network is back" : "The network is cut"), e.up ? "" : "warn"],
  session: (e) => [say(e.up ? "Both ends have proved who they are" : "The session on the cable is down"), e.up ? "" : "warn"],
  advance: () => [say("Six hours pass"), ""],
  erased: (e) => [`${e.who} ${say("is erased at the service; receipt")} ${e.receipt_id.slice(0, 8)}…`, "bad"],
  tombstone: (e) => [`${e.who} ${say("is gone from the device's gallery")} (${e.seq})`, "bad"],
  stolen: () => [say("The device is stolen; its operator revokes it"), "bad"],
  revoked: () => [say("The service has revoked the device"), "bad"],
  wiped: () => [say("The device has destroyed its keys, its gallery and its journal"), "bad"],
  health: (e) => [`${say("The device's health")}: ${e.words.join(" ") || say("well")}`, e.words.some((word) => ["GALLERY_STALE", "REVOKED", "LINK_DOWN"].includes(word)) ? "warn" : ""],
  gallery: (e) => [`${say("The device's gallery is at")} ${e.epoch} / ${e.seq}`, ""],
};
const GIST = {
  verdict: (body) => `#${body.verdict.verdict_seq} ${body.verdict.result}`, decision: (body) => `${body.decision_obj.outcome} ${body.decision_obj.reason}`,
  status: (body) => body.status_obj.health.join(" "), error: (body) => `${body.code} · ${body.about}`, guide: (body) => body.hint, request: (body) => body.request.txn_id.slice(0, 8),
  passage: (body) => (body.passage.passed ? "passed" : "not passed"),
};

function gist(event) {
  try { return event.body && GIST[event.type] ? GIST[event.type](event.body) : ""; } catch { return ""; }
}

function heading(event) {
  if (event.kind === "frame") {
    const other = event.from === "device" ? "validator" : "device", what = event.type || event.frame.toLowerCase();
    const part = event.type || !event.of ? gist(event) : `${say("part")} ${event.fragment} ${say("of")} ${event.of}`;
    return [`${event.from} → ${other}`, what, part];
  }
  const way = event.kind === "request" ? `${event.from} → service` : `service → ${event.from}`;
  const what = event.kind === "request" ? event.method : String(event.status);
  return [way, what, event.path + (event.lost ? ` · ${say("lost")}` : "")];
}

function row(event) {
  const item = make("li"), time = make("time", "", (event.at_ms / 1000 >= 3600 ? clock(event.at_ms) : (event.at_ms / 1000).toFixed(3)));
  item.dataset.kind = event.quiet ? "quiet" : event.kind === "story" ? "story" : event.kind === "frame" ? "frame" : "http";
  if (event.kind === "story") {
    const [text, tone] = (STORIES[event.what] || (() => [event.what, ""]))(event);
    const line = make("div", `story ${tone}`);
    line.append(time, make("span", "", text));
    item.append(line);
    return item;
  }
  const details = make("details"), summary = make("summary"), line = make("span"), [who, what, rest] = heading(event);
  item.className = `from-${event.kind === "answer" ? "service" : event.from}${event.lost ? " lost" : ""}`;
  line.append(make("span", "who", who), " ", make("b", "", what), " ", make("span", "what", rest));
  summary.append(time, line);
  details.append(summary);
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const { n, at_ms, kind, quiet, type, body, ...rest } = event;  // what is said comes first
    details.append(make("pre", "", JSON.stringify({ type, body, ...rest }, null, 2)));
  });
  item.append(details);
  return item;
}

function drawEvents(events) {
  const wanted = events.filter((event) => !event.quiet || document.querySelector("[data-kind=quiet]").checked);
  for (const event of events) {
    if (event.quiet || event.kind === "story") continue;
    if (event.kind === "frame") fly("cable-wire", event.from === "device" ? "right" : "left");
    else if (event.from === "device" && !event.lost) fly("network-wire", event.kind === "request" ? "left" : "right");
  }
  const list = $("events"), away = list.scrollTop > 4, height = list.scrollHeight;
  list.prepend(...wanted.slice(-MOST_ROWS).map(row).reverse());
  while (list.children.length > MOST_ROWS) list.lastChild.remove();
  if (away) list.scrollTop += list.scrollHeight - height;  // what is being read stays where it is
}

function filter() {
  const list = $("events");
  for (const box of all(".filters [data-kind]")) list.classList.toggle(`no-${box.dataset.kind}`, !box.checked);
}

// ---- the loops

let replaying = false, refusal = "";

async function news() {
  while (!over) {
    try {
      const answer = await fetch(`news?run=${run}&after=${last}`);
      if (!answer.ok) throw new Error("refused");
      const told = await answer.json();
      if (told.run !== run) {
        run = told.run; last = 0; state = null; shownVerdict = ""; refusal = "";
        $("events").replaceChildren();
      }
      if (told.events.length) { last = told.events.at(-1).n; drawEvents(told.events); }
      const replay = told.replay && told.replay.same === null;
      replaying = replay;
      if (told.state.people) {
        const first = state === null;
        state = told.state;
        if (first) { drawPeople(); $("seed").value = state.seed; $("save").download = `playground-${state.seed}.json`; }
        drawState();
        write("count", `${number(state.events)} ${say("events")}`);
        document.body.dataset.ready = run;
      }
      for (const button of all("[data-pace]")) button.setAttribute("aria-pressed", String(Number(button.dataset.pace) === told.pace));
      notice(told);
    } catch { over = true; notice({ state: {} }); return; }
    await pause(document.hidden ? 1000 : EVERY_MS);
  }
}

async function camera() {
  while (!over) {
    if (!document.hidden) {
      const answer = await fetch(`camera?after=${shownFrame}`).catch(() => null);
      if (answer && answer.status === 200) {
        const told = JSON.parse(answer.headers.get("X-About")), url = URL.createObjectURL(await answer.blob());
        $("picture").onload = () => URL.revokeObjectURL(url);
        $("picture").src = url;
        shownFrame = told.number;
        drawHand(told);
      }
    }
    await pause(90);
  }
}

function drawHand(told) {
  const hand = told.hand, whole = hand && hand.side !== null, points = (list) => list.map(([x, y]) => `${x},${y}`).join(" ");
  $("overlay").setAttribute("viewBox", `0 0 ${told.width} ${told.height}`);
  $("outline").setAttribute("d", whole && hand.outline.length ? `M${points(hand.outline)}Z` : "");
  $("crop").setAttribute("points", whole ? points(hand.crop) : "");
  write("seen", !hand ? say("no hand in view") : !whole ? say("a hand") : say(hand.side === "L" ? "left palm" : "right palm") + (told.quality ? `, ${say("quality")} ${told.quality.quality_q}` : ""));
}

async function begin(name, body) {
  const answer = await post(name, body);
  refusal = answer.ok ? "" : (await answer.json().catch(() => ({}))).error || String(answer.status);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.button) post("press", { button: button.dataset.button, who: button.dataset.who || "" });
  if (button.dataset.toggle) post("press", { button: button.dataset.does, who: "" });
  if (button.dataset.pace) post("pace", { pace: Number(button.dataset.pace) });
});
$("begin").addEventListener("submit", (event) => { event.preventDefault(); begin("begin", { seed: Number($("seed").value) }); });
$("open").addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); $("file").click(); } });
$("file").addEventListener("change", async () => {
  const file = $("file").files[0];
  if (file) await begin("replay", { file: await file.slice(0, 300000).text() });
  $("file").value = "";
});
for (const box of all(".filters [data-kind]")) box.addEventListener("change", () => {
  if (box.dataset.kind === "quiet") { last = 0; $("events").replaceChildren(); }
  filter();
});
translatePage(); filter(); news(); camera();
