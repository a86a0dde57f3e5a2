// Mathematics wider than its column scrolls: let the keyboard reach it.
addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  const reach = () => {
    for (const box of document.querySelectorAll("mjx-container[display=true]")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  reach();
  addEventListener("resize", reach);
});
