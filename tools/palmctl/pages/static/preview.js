"use strict";
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const PARTS = ["sharpness", "exposure", "coverage", "pose", "motion"];
const HINTS = {
  show_hand: "Show a palm to the camera", closer: "Come a little closer", farther: "Move the hand a little back",
  center: "Move the hand to the middle", open_hand: "Open the hand, fingers apart", hold_still: "Hold still",
  remove_hand: "Take the hand away", thanks: "Thank you",
};
let shown = 0, over = false, ratio = "";

function makeRows() {
  for (const part of PARTS) {
    const row = [["dt", "", part], ["dd", "bar", ""], ["dd", "number", "–"]].map(([tag, name, text]) => {
      const cell = document.createElement(tag);
      cell.className = name; cell.textContent = text;
      return cell;
    });
    row[1].id = "bar-" + part; row[2].id = "number-" + part;
    row[1].append(...["i", "b", "b"].map((tag) => document.createElement(tag)));
    row[1].children[1].className = "passage"; row[1].children[2].className = "enrol";
    $("bars").append(...row);
  }
}

function points(list) { return list.map(([x, y]) => x + "," + y).join(" "); }

function drawHand(told) {
  const hand = told.hand, whole = hand && hand.side !== null;
  $("overlay").setAttribute("viewBox", `0 0 ${told.width} ${told.height}`);
  $("outline").setAttribute("d", whole && hand.outline.length ? "M" + points(hand.outline) + "Z" : "");
  $("crop").setAttribute("points", whole ? points(hand.crop) : "");
  $("valleys").replaceChildren(...(whole ? hand.valleys : []).map(([x, y]) => {
    const dot = document.createElementNS(SVG, "circle");
    dot.setAttribute("cx", x); dot.setAttribute("cy", y); dot.setAttribute("r", 4);
    return dot;
  }));
  const scale = told.height / 150;
  $("guide").setAttribute("transform", `translate(${told.width / 2} ${told.height / 2}) scale(${scale})`);
  $("guide").style.display = hand ? "none" : "";
  const size = `${told.width} / ${told.height}`;
  if (size !== ratio) { ratio = size; $("frame").style.aspectRatio = size; }
}

function drawBar(bar, value, floors, top) {
  const [fill, passage, enrol] = bar.children;
  fill.style.width = (value === null ? 0 : Math.max(0, Math.min(100, value / top * 100))) + "%";
  bar.classList.toggle("low", value !== null && value < floors[0]);
  bar.classList.toggle("fair", value !== null && value >= floors[0] && value < floors[1]);
  passage.style.left = floors[0] / top * 100 + "%";
  if (enrol) enrol.style.left = floors[1] / top * 100 + "%";
}

function drawFacts(told) {
  const floors = [told.floors.quality_q, told.floors.enrol_quality_q], quality = told.quality;
  for (const part of PARTS) {
    drawBar($("bar-" + part), quality ? quality[part] : null, floors, 100);
    $("number-" + part).textContent = quality ? quality[part] : "–";
  }
  $("quality").textContent = quality ? quality.quality_q + " of 100" : "–";
  $("frame").classList.toggle("poor", !!quality && quality.quality_q < floors[0]);
  const pad = told.pad;
  $("pad").textContent = pad ? `${pad.res} ${Math.round(pad.score_q / 100)} %` : "–";
  drawBar($("pad-bar").parentElement, pad ? pad.score_q : null, [told.floors.pad_q, told.floors.pad_q], 10000);
  const stages = told.stages_us, total = stages.reduce((sum, [, us]) => sum + us, 0);
  $("total").textContent = (total / 1000).toFixed(1) + " ms";
  $("stages").replaceChildren(...stages.flatMap(([name, us]) => {
    const [dt, dd, number] = ["dt", "dd", "dd"].map((tag) => document.createElement(tag));
    const fill = document.createElement("i");
    dt.textContent = name; dd.className = "bar time"; number.className = "number";
    fill.style.width = us / Math.max(total, 1) * 100 + "%";
    dd.append(fill); number.textContent = (us / 1000).toFixed(1);
    return [dt, dd, number];
  }));
  const hand = told.hand;
  const enough = quality && quality.quality_q >= floors[0] ? ", good" : ", not good enough yet";
  const said = hand && hand.side ? (hand.side === "L" ? "Left palm" : "Right palm") + enough : "Something is there";
  const hint = told.hint ? HINTS[told.hint] || told.hint : hand ? said : HINTS.show_hand;
  if ($("hint").textContent !== hint) $("hint").textContent = hint;
}

function chip(text, name) { $("state").textContent = text; $("state").className = "chip " + name; }

async function frames() {
  while (!over) {
    if (document.hidden) { await pause(400); continue; }
    try {
      const answer = await fetch("frame");
      if (answer.status === 410 || answer.status === 404) return end("this address is no longer good");
      if (answer.status === 200) {
        const told = JSON.parse(answer.headers.get("X-About")), url = URL.createObjectURL(await answer.blob());
        $("picture").onload = () => URL.revokeObjectURL(url);
        $("picture").src = url;
        $("frame").classList.add("seen");
        drawHand(told); drawFacts(told);
        shown += 1; chip("live", "live"); document.body.dataset.shown = shown;
      } else if (answer.status === 503) { chip("the core does not answer", "away"); await pause(1000); }
    } catch { return end("the preview has ended"); }
  }
}

function end(text) {
  over = true; chip(text, "away"); $("frame").classList.remove("seen"); $("picture").removeAttribute("src");
  $("lost").textContent = text + "; start it again with palmctl preview";
}

async function facts() {
  while (!over) {
    try {
      const told = await (await fetch("status")).json();
      if (told.camera) {
        $("device").textContent = `${told.device_id} at ${told.gate_id}`;
        $("camera").textContent = `${told.camera.condition} · ${told.camera.message || told.camera.description}`;
      }
    } catch { /* the other loop says so */ }
    await pause(3000);
  }
}

function pause(ms) { return new Promise((done) => setTimeout(done, ms)); }

addEventListener("pagehide", () => {
  fetch("bye", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}", keepalive: true });
});
makeRows(); frames(); facts();
