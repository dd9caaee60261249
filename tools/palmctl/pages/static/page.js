"use strict";
// What the pages have in common. The script of a page comes after this one and has its table, PORTUGUESE.
const $ = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const inPortuguese = /^pt\b/i.test(navigator.language);
const language = inPortuguese ? "pt-BR" : "en";
const say = (text) => (inPortuguese && PORTUGUESE[text]) || text;

function translatePage() {
  document.documentElement.lang = language;
  document.title = say(document.title);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim();
    if (text) texts.currentNode.data = texts.currentNode.data.replace(text, () => say(text));
  }
  for (const name of ["alt", "aria-label"]) {
    for (const element of all(`[${name}]`)) element.setAttribute(name, say(element.getAttribute(name)));
  }
}

function make(tag, name, ...inside) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...inside);
  return element;
}

function pause(ms) { return new Promise((done) => setTimeout(done, ms)); }
