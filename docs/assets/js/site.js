// The buttons of overrides/main.html open the menu and the search as the theme's labels do, by a checkbox.
for (const button of document.querySelectorAll("button[data-opens]")) {
  const box = document.getElementById(button.dataset.opens)
  button.addEventListener("click", () => {
    box.click()
    if (box.id === "__search") document.querySelector(".md-search__input").focus()
  })
  box.addEventListener("change", () => { button.ariaExpanded = box.checked })
}

// The theme puts each copy button into a <nav>, and so fills the list of the page's landmarks.
addEventListener("load", () => {
  for (const nav of document.querySelectorAll("nav.md-code__nav")) nav.role = "none"
})
