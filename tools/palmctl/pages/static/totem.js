"use strict";
const $ = (id) => document.getElementById(id);
const CODE_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const BACK_HOME_MS = 15000;
// A half-typed code opens a session, and the next person need not see it, nor the language of the one before.
const KEYPAD_MS = 60000;
// After these the keypad comes back with what was typed: the likely cause is a wrong letter.
const MISTYPED = ["enrollment_session_invalid", "not_a_code"];
// The left hand as a mirror shows it, and as its owner sees its outline: the thumb is on the right. As the camera sees
// it, not mirrored, the thumb is on the left, and people hold up the other hand (docs/howto/TOTEM.md).
const HAND = "M22 46C34 40 44 26 50 12C54 3 50-3 45-2C40-1 36 7 30 14L30-30C30-41 17-41 17-30L16-4L14-44C13-55 1-55 1-44L-1-5L-4-42C-5-53-17-52-17-41L-17-2L-21-30C-23-40-34-38-33-28L-32 14C-32 32-26 42-19 49L-17 66L21 66Z";
const CAPTURES = ["show_hand", "remove_hand"];
const STEP_OF = { idle: 0, keypad: 0, checking_code: 0, consent: 1, show_hand: 2, remove_hand: 2, sending: 2, done: 3, review: 3, failed: 3 };

let all = null, language = "pt-BR", told = null, local = null, homeTimer = 0, problem = "", lastHead = "", typed = "";

const word = (name) => all.words[language][name] || "";
function fitted(name, values) { return word(name).replace(/\{(\w+)\}/g, (_, key) => values[key]); }

async function post(op, members) {
  const answer = await fetch(op, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(members || {}) });
  return answer.ok ? null : (await answer.json()).code;
}

/* What is shown: the core's state, unless this screen is ahead of it (home, keypad). */
function current() {
  if (!told) return { step: "away" };
  const running = ["checking_code", "consent", "show_hand", "remove_hand", "sending"].includes(told.state.step);
  if (running) { local = null; return told.unready && CAPTURES.includes(told.state.step) ? { step: "unready" } : told.state; }
  if (told.unready) return { step: "unready" };
  if (local) return { step: local };
  return told.state;
}

function put(name, fill) {
  const screen = $("screen"), copy = $("t-" + name).content.cloneNode(true);
  for (const place of copy.querySelectorAll("[data-word]")) place.textContent = word(place.dataset.word);
  for (const button of copy.querySelectorAll("[data-do]")) button.addEventListener("click", () => act(button.dataset.do));
  screen.replaceChildren(copy);
  screen.className = "";
  if (fill) fill(screen);
}
const slot = (name) => $("screen").querySelector(`[data-slot="${name}"]`);

async function act(what) {
  const code = typed;
  typed = problem = "";
  if (what === "keypad" || what === "retype") local = "keypad";
  else if (what === "home") local = "idle";
  else await post(what);
  if (what === "retype") typed = code;
  draw(true);
}

/* The next person begins in the first language. */
function leave() { language = all.languages[0]; act("home"); }

/* A typed code that was refused goes back to the keypad; any other end is shown. */
function ended(state) {
  if (typed === "" || !MISTYPED.includes(state.code)) return false;
  local = "keypad"; problem = state.code;
  return true;
}

/* Announced to a screen reader: each part as a sentence, so that it pauses between them. */
function say(...parts) {
  const text = parts.filter(Boolean).map((part) => (/[.!?…]$/.test(part) ? part : part + ".")).join(" ");
  if ($("said").textContent !== text) $("said").textContent = text;
}

function draw(anew) {
  if (!all) return;
  const state = current(), step = state.step, head = [step, state.hand, language, told && told.unready, problem].join();
  document.documentElement.lang = language;
  document.body.dataset.step = step;
  [...$("steps").children].forEach((dot, at) => { const now = STEP_OF[step]; dot.className = at < now || step === "done" ? "past" : at === now ? "now" : ""; });
  if (head !== lastHead || anew) {
    lastHead = head;
    SCREENS[step] ? SCREENS[step](state) : SCREENS.failed({ code: "other" });
    const other = all.languages.find((name) => name !== language);
    $("language").textContent = all.words[other].language; $("language").lang = other;
    document.querySelector("footer p").textContent = word("privacy");
    clearTimeout(homeTimer);
    if (["done", "review", "failed"].includes(step)) homeTimer = setTimeout(leave, BACK_HOME_MS);
    if (step === "keypad" || (step === "idle" && language !== all.languages[0])) homeTimer = setTimeout(leave, KEYPAD_MS);
    const first = step === "keypad" ? $("code") : $("screen");
    first.focus({ preventScroll: true });
  }
  if (LIVE[step]) LIVE[step](state);
  showMore();
}

/* What scrolls and is not at its end says so: a panel for fingers shows no scroll bars. */
function showMore() {
  for (const box of document.querySelectorAll("[data-scrolls]")) box.classList.toggle("more", box.scrollHeight - box.clientHeight - box.scrollTop > 2);
}

const SCREENS = {
  away() { put("busy", (screen) => { slot("title").textContent = word("unready"); slot("how").textContent = word("unready_how"); screen.querySelector("button").remove(); }); say(word("unready")); },
  unready() { SCREENS.away(); },
  idle() { put("welcome"); say(word("welcome"), word("welcome_how")); },
  keypad() { put("keypad", keypad); say(slot("title").textContent, slot("how").textContent); },
  checking_code() { put("busy", () => { slot("title").textContent = word("checking_code"); }); say(word("checking_code")); },
  consent(state) { put("consent", (screen) => consent(state, screen)); say(word("consent_title"), word("consent_lead")); },
  show_hand() { put("hand", hand); },
  remove_hand() { put("hand", hand); },
  sending() { put("busy"); },
  done() { end("done", "M28 52l15 15 30-34", "done", "done_how"); },
  review() { end("review", "M50 26v26l16 12", "review", "review_how"); },
  failed(state) {
    const again = typed !== "" && state.code === "unreachable";
    end("failed", "M50 26v30M50 72v1", "failed", "why_" + state.code);
    $("retype").hidden = !again;
    if (again) $("again").className = "quiet";
  },
};

const LIVE = {
  sending() { slot("title").textContent = word("sending"); slot("how").textContent = word(told.online ? "sending_how" : "sending_offline"); say(slot("title").textContent, slot("how").textContent); },
  show_hand(state) {
    const name = state.hint ? "hint_" + state.hint : "hint_none", hint = word(name) || word("hint_none");
    handFacts(state, word("show_" + state.hand), hint);
    say(word("show_" + state.hand), hint, fitted("captured", state));
  },
  remove_hand(state) { $("screen").className = "remove"; handFacts(state, word("remove_hand"), ""); say(word("remove_hand")); },
};

function hand() { for (const id of ["halo", "skin", "fill"]) $(id).setAttribute("d", HAND); }

function handFacts(state, title, hint) {
  slot("title").textContent = title; slot("hint").textContent = hint;
  slot("count").textContent = state.hands.length > 1 ? fitted("hand_of", { index: state.hands.indexOf(state.hand) + 1, count: state.hands.length }) : "";
  document.body.dataset.hand = state.hand;
  $("hand-side").setAttribute("transform", state.hand === "R" ? "scale(-1 1)" : "");
  $("level-box").style.transform = `translateY(${-130 * state.captured / state.wanted}px)`;
  const have = slot("captures");
  have.replaceChildren(...Array.from({ length: state.wanted }, (_, at) => { const dot = document.createElement("li"); if (at < state.captured) dot.className = "have"; return dot; }));
  have.setAttribute("aria-label", fitted("captured", state));
}

function end(name, mark, title, how) {
  put("end", (screen) => { screen.className = name; });
  slot("mark").setAttribute("d", mark);
  slot("title").textContent = word(title); slot("how").textContent = word(how) || word("why_other");
  say(slot("title").textContent, slot("how").textContent);
}

function keypad() {
  const field = $("code"), go = $("code-form").querySelector(".main");
  slot("title").textContent = word(problem ? "check_code" : "code_title");
  slot("how").textContent = word(problem === "enrollment_session_invalid" ? "why_typed_code" : problem ? "why_" + problem : "code_how");
  $("screen").className = problem ? "mistyped" : "";
  if (problem) field.setAttribute("aria-invalid", "true");
  const edited = () => {
    field.removeAttribute("aria-invalid");
    clearTimeout(homeTimer);
    homeTimer = setTimeout(leave, KEYPAD_MS);
  };
  const tidy = () => {
    const text = field.value.toUpperCase().replace(/[IL]/g, "1").replace(/O/g, "0").replace(/[^0-9A-HJKMNP-TV-Z]/g, "").slice(0, 8);
    field.value = text.length > 4 ? text.slice(0, 4) + "-" + text.slice(4) : text;
    go.disabled = text.length !== 8;
  };
  const key = (label, press, name) => {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = label;
    if (name) button.setAttribute("aria-label", name);
    button.addEventListener("click", () => { press(); tidy(); edited(); });
    return button;
  };
  $("keys").append(...[...CODE_LETTERS].map((letter) => key(letter, () => { field.value += letter; })), key("⌫", () => { field.value = field.value.replace(/.-?$/, ""); }, word("delete")));
  field.addEventListener("input", () => { tidy(); edited(); });
  $("code-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    typed = field.value;
    problem = lastHead = "";  // the same refusal is drawn and said again
    const refused = await post("begin", { short_code: field.value });
    if (!refused) return;
    told.state = { step: "failed", code: refused };
    if (!ended(told.state)) local = null;
    draw(true);
  });
  field.value = typed;
  tidy();
}

async function consent(state, screen) {
  typed = "";
  const accept = $("accept"), article = $("terms");
  accept.disabled = true;
  const answer = await fetch(`terms?version=${encodeURIComponent(state.terms_version)}&language=${language}`);
  const terms = answer.ok ? await answer.json() : null;
  if (!article.isConnected) return;  // drawn again meanwhile, in another language
  if (!terms) { await post("cancel"); return; }
  const add = (parent, tag, text, name) => { const made = document.createElement(tag); made.textContent = text; if (name) made.className = name; parent.append(made); return made; };
  article.lang = terms.language;
  add(article, "h3", terms.title).id = "terms-title";
  add(article, "p", terms.terms_version, "version");
  for (const paragraph of terms.paragraphs) {
    const lines = paragraph.split("\n");
    if (lines.length > 1) add(article, "h4", lines.shift());
    for (const line of lines) add(article, "p", line);
  }
  for (const purpose of terms.required) add($("purposes"), "li", word(purpose));
  for (const purpose of state.optional) {
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox"; box.name = purpose;
    label.append(box); add(label, "span", word(purpose)); $("optional").append(label);
  }
  accept.disabled = false;
  showMore();
  accept.addEventListener("click", async () => {
    accept.disabled = true;
    const more = [...screen.querySelectorAll("#optional input:checked")].map((box) => box.name);
    if (await post("accept", { terms_version: terms.terms_version, purposes: [...terms.required, ...more] })) accept.disabled = false;
  });
}

async function follow() {
  for (;;) {
    try {
      const answer = await fetch("state?after=" + (told ? told.seq : 0));
      if (answer.status === 404 || answer.status === 410) { told = null; draw(true); return; }
      const before = told;
      told = answer.ok ? await answer.json() : null;
      const next = told && before && told.seq !== before.seq;
      if (next && local === "idle") local = null;
      if (next && told.state.step === "failed") ended(told.state);
      // An end from before this page was opened is not shown.
      if (told && !before && ["done", "review", "failed"].includes(told.state.step)) local = "idle";
      draw(false);
      if (!told) await pause(1500);
    } catch { told = null; draw(false); await pause(1500); }
  }
}

function pause(ms) { return new Promise((done) => setTimeout(done, ms)); }

addEventListener("resize", showMore);
document.addEventListener("scroll", showMore, true);
// A long touch opens no menu, and nothing is dragged out of the page.
for (const kind of ["contextmenu", "dragstart"]) addEventListener(kind, (event) => event.preventDefault());
$("language").addEventListener("click", () => { language = all.languages.find((name) => name !== language); draw(true); });
(async () => { all = await (await fetch("words")).json(); draw(true); follow(); })();
