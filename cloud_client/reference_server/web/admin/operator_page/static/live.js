// Keeps a page current without reloading it: the same page is fetched and its <main> exchanged.
// Without script the page reloads itself.
const EVERY_MS = 5000, ANSWER_MS = 10000;
let asking = false;

// Times arrive in UTC, and are shown in the reader's own zone.
function localize() {
  const language = document.documentElement.lang;
  for (const time of document.querySelectorAll("time[datetime]")) {
    const shown = new Date(time.dateTime).toLocaleString(language, { dateStyle: "short", timeStyle: "long" });
    if (time.className === "clock") time.textContent = shown; else time.title = shown;
  }
}

// Of the visit that a page was made for. Signing in again, in another tab, is another one: another key perhaps.
const visit = (page) => page.querySelector("[name=form_token]")?.getAttribute("value");

async function refresh() {
  if (asking || document.hidden || getSelection().toString()) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout?.(ANSWER_MS) });
    if (answer.redirected) return location.reload(); // signed out meanwhile
    if (answer.status >= 500) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (visit(fresh) !== visit(document)) return location.reload();
    const old = document.querySelector("main");
    if (old.contains(document.activeElement) && document.activeElement !== old) return;
    old.replaceWith(fresh.querySelector("main"));
    localize();
    document.body.classList.remove("stale");
  } catch {
    document.body.classList.add("stale");
  } finally {
    asking = false;
  }
}

localize();
setInterval(refresh, EVERY_MS);
document.addEventListener("visibilitychange", refresh);
