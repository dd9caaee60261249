"use strict";
const SVG = "http://www.w3.org/2000/svg";
const PARTS = ["sharpness", "exposure", "coverage", "pose", "occlusion", "motion"];
const LOST_MS = 2000, BETWEEN_MS = 50;
const HINTS = {
  show_hand: "Show a palm to the camera", closer: "Come a little closer", farther: "Move the hand a little back",
  center: "Move the hand to the middle", open_hand: "Open the hand, fingers apart", hold_still: "Hold still",
  remove_hand: "Take the hand away", thanks: "Thank you",
};
const PORTUGUESE = {
  "Camera preview": "Prévia da câmera",
  "connecting": "conectando",
  "Camera picture": "Imagem da câmera",
  "What the camera sees now": "O que a câmera vê agora",
  "no picture from the camera": "sem imagem da câmera",
  "Quality": "Qualidade",
  "Liveness": "Prova de vida",
  "Time a frame": "Tempo por imagem",
  "Camera": "Câmera",
  "enough for a passage": "basta para uma passagem",
  "enough to enrol": "basta para cadastrar",
  "Live only.": "Só ao vivo.",
  "Pictures are made in memory when this page asks for one, at most eight a second, and stored nowhere, here or on the device. Close the page to end it.":
    "As imagens são feitas na memória quando esta página pede, no máximo oito por segundo, e não são guardadas, nem aqui nem no dispositivo. Feche a página para encerrar.",
  "Show a palm to the camera": "Mostre a palma à câmera",
  "Come a little closer": "Chegue um pouco mais perto",
  "Move the hand a little back": "Afaste um pouco a mão",
  "Move the hand to the middle": "Leve a mão para o centro",
  "Open the hand, fingers apart": "Abra a mão e separe os dedos",
  "Hold still": "Fique com a mão parada",
  "Take the hand away": "Retire a mão",
  "Thank you": "Obrigado",
  "sharpness": "nitidez", "exposure": "exposição", "coverage": "cobertura", "pose": "posição",
  "occlusion": "oclusão", "motion": "movimento",
  "of": "de", "at": "em",
  "Left palm, good": "Palma esquerda, boa",
  "Right palm, good": "Palma direita, boa",
  "Left palm, not good enough yet": "Palma esquerda, ainda não basta",
  "Right palm, not good enough yet": "Palma direita, ainda não basta",
  "Something is there": "Há alguma coisa ali",
  "live": "ao vivo",
  "the core does not answer": "o núcleo não responde",
  "the core refuses, see palmctl status": "o núcleo recusa, veja palmctl status",
  "this address is no longer good": "este endereço não vale mais",
  "the preview has ended": "a prévia terminou",
  "start it again with palmctl preview": "inicie de novo com palmctl preview"
};
let shown = 0, over = false, ratio = "", pictureMs = 0;

function makeRows() {
  for (const part of PARTS) {
    const row = [["dt", "", say(part)], ["dd", "bar", ""], ["dd", "number", "–"]].map(([tag, name, text]) => {
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

function milliseconds(us) {
  return (us / 1000).toLocaleString(language, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
}

function drawFacts(told) {
  const floors = [told.floors.quality_q, told.floors.enrol_quality_q], quality = told.quality;
  for (const part of PARTS) {
    drawBar($("bar-" + part), quality ? quality[part] : null, floors, 100);
    $("number-" + part).textContent = quality ? quality[part] : "–";
  }
  $("quality").textContent = quality ? `${quality.quality_q} ${say("of")} 100` : "–";
  $("frame").classList.toggle("poor", !!quality && quality.quality_q < floors[0]);
  const pad = told.pad;
  $("pad").textContent = pad ? `${pad.res} ${Math.round(pad.score_q / 100)} %` : "–";
  drawBar($("pad-bar").parentElement, pad ? pad.score_q : null, [told.floors.pad_q, told.floors.pad_q], 10000);
  const stages = told.stages_us, total = stages.reduce((sum, [, us]) => sum + us, 0);
  $("total").textContent = milliseconds(total) + " ms";
  $("stages").replaceChildren(...stages.flatMap(([name, us]) => {
    const [dt, dd, number] = ["dt", "dd", "dd"].map((tag) => document.createElement(tag));
    const fill = document.createElement("i");
    dt.textContent = name; dd.className = "bar time"; number.className = "number";
    fill.style.width = us / Math.max(total, 1) * 100 + "%";
    dd.append(fill); number.textContent = milliseconds(us);
    return [dt, dd, number];
  }));
  const hand = told.hand;
  const enough = quality && quality.quality_q >= floors[0] ? ", good" : ", not good enough yet";
  const said = say(hand && hand.side ? (hand.side === "L" ? "Left palm" : "Right palm") + enough : "Something is there");
  const hint = told.hint ? say(HINTS[told.hint] || told.hint) : hand ? said : say(HINTS.show_hand);
  if ($("hint").textContent !== hint) $("hint").textContent = hint;
}

function chip(text, name) { $("state").textContent = say(text); $("state").className = "chip " + name; }

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
        pictureMs = performance.now();
      } else if (answer.status === 503) { chip("the core does not answer", "away"); await pause(1000); }
      else if (answer.status === 204) {
        if (performance.now() - pictureMs > LOST_MS) { chip("no picture from the camera", "away"); $("frame").classList.remove("seen"); }
        await pause(BETWEEN_MS);  // another tab may be shown one
      } else { chip("the core refuses, see palmctl status", "away"); $("frame").classList.remove("seen"); await pause(1000); }
    } catch { return end("the preview has ended"); }
  }
}

function end(text) {
  over = true; chip(text, "away"); $("frame").classList.remove("seen"); $("picture").removeAttribute("src");
  $("lost").textContent = `${say(text)}; ${say("start it again with palmctl preview")}`;
}

async function facts() {
  while (!over) {
    try {
      const told = await (await fetch(`status?language=${language}`)).json();
      if (told.camera) {
        $("device").textContent = `${told.device_id} ${say("at")} ${told.gate_id}`;
        $("camera").textContent = `${told.camera.condition} · ${told.camera.message || told.camera.description}`;
      }
    } catch { /* the other loop says so */ }
    await pause(3000);
  }
}

addEventListener("pagehide", () => {
  fetch("bye", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}", keepalive: true });
});
translatePage(); makeRows(); frames(); facts();
