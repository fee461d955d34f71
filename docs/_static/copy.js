// A button on each block of code copies its text. Blocks with Python's prompt hold results, too, and have none.
for (const block of document.querySelectorAll("div[class^=highlight-]:not(.highlight-pycon) pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.textContent.trimEnd());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  if (navigator.clipboard) block.parentElement.append(button);
}
