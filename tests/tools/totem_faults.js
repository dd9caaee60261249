// What is wrong with the totem's screen as it is now: a list of sentences.
(() => {
  const faults = [], name = (one) => `${one.tagName} ${one.textContent.trim().slice(0, 40)}`;
  const seen = (one) => one.checkVisibility() && !one.closest('.unseen, [aria-hidden=true]');
  const uncovered = (one, at) => {
    const top = document.elementFromPoint(at.left + at.width / 2, at.top + at.height / 2);
    return top !== null && (one.contains(top) || top.contains(one));
  };
  const inside = (at, box) =>
    at.left >= box.left - 1 && at.right <= box.right + 1 && at.top >= box.top - 1 && at.bottom <= box.bottom + 1;
  const view = { left: 0, top: 0, right: innerWidth, bottom: innerHeight };
  const scrolls = (one) => /auto|scroll/.test(getComputedStyle(one).overflowY) && one.scrollHeight > one.clientHeight + 1;
  const scroller = (one) => one === null || scrolls(one) ? one : scroller(one.parentElement);

  for (const button of [...document.querySelectorAll('button, input[type=checkbox]')].filter(seen)) {
    const at = (button.closest('label') || button).getBoundingClientRect();
    if (scroller(button)) { if (button.tagName === 'BUTTON') faults.push(`${name(button)} scrolls away`); continue; }
    if (!inside(at, view)) faults.push(`${name(button)} is out of view`);
    if (at.height < 44 || at.width < 44) faults.push(`${name(button)} is too small for a finger`);
    if (!uncovered(button, button.getBoundingClientRect())) faults.push(`${name(button)} is covered`);
  }
  for (const box of document.querySelectorAll('body *')) {
    if (!seen(box)) continue;
    if (box.clientWidth > 0 && box.scrollWidth > box.clientWidth + 1) faults.push(`${name(box)} is wider than its box`);
    if (scrolls(box)) {
      const rest = box.scrollHeight - box.clientHeight - box.scrollTop;
      if (rest > 2 && !box.classList.contains('more')) faults.push(`${name(box)} scrolls and does not say so`);
      if (box.tabIndex < 0 || !box.matches('article, [role]')) faults.push(`${name(box)} cannot be scrolled with keys`);
    } else if (box.clientHeight > 0 && box.scrollHeight > box.clientHeight + 1 && getComputedStyle(box).overflowY !== 'visible')
      faults.push(`${name(box)} is higher than its box`);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, parent = text.parentElement;
    if (!text.data.trim() || !seen(parent) || parent.closest('script, noscript, template')) continue;
    const range = document.createRange(); range.selectNodeContents(text);
    const around = scroller(parent), box = around && around.getBoundingClientRect();
    for (const at of range.getClientRects()) {
      const allowed = box ? { left: box.left, right: box.right, top: -Infinity, bottom: Infinity } : view;
      if (!inside(at, allowed)) faults.push(`the text ${name(parent)} is cut`);
      else if (!box && !uncovered(parent, at)) faults.push(`the text ${name(parent)} is covered`);
    }
  }
  if (document.documentElement.scrollHeight > innerHeight) faults.push('the page scrolls');
  return [...new Set(faults)];
})()
