// The table of models sorts by a click on a column's head, and shows the rows that the fields above it select.
(() => {
  const table = document.querySelector(".models table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const column = (title) => heads.findIndex((head) => head.textContent.trim() === title);
  const text = (row, index) => row.cells[index].textContent.trim();
  // Numbers and sizes such as 1066×800 sort by their first number; empty cells come last in both directions.
  const key = (row, index) => {
    const value = text(row, index);
    const number = parseFloat(value);
    return value !== "" && Number.isFinite(number) ? number : value.toLowerCase();
  };

  const sort = (index, direction) => {
    const compare = (a, b) => {
      const [left, right] = [key(a, index), key(b, index)];
      if (left === "" || right === "") return (left === "") - (right === "");
      const order = typeof left === "number" && typeof right === "number" ? left - right : `${left}`.localeCompare(`${right}`);
      return direction * order;
    };
    heads.forEach((head, at) => {
      if (at === index) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    body.append(...[...rows].sort(compare));
  };

  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      // A first click puts the largest number, or the first name, on top.
      const numeric = rows.some((row) => typeof key(row, index) === "number");
      const sorted = head.getAttribute("aria-sort");
      const first = numeric ? -1 : 1;
      sort(index, sorted === null ? first : sorted === "ascending" ? -1 : 1);
    });
  });

  const controls = document.createElement("form");
  controls.className = "models-filter";
  controls.addEventListener("submit", (event) => event.preventDefault());
  const add = (title, control) => {
    const label = document.createElement("label");
    label.append(title, control);
    controls.append(label);
    control.addEventListener("input", filter);
    return control;
  };
  const choices = (title) => {
    const index = column(title);
    const select = document.createElement("select");
    const values = [...new Set(rows.map((row) => text(row, index)).filter(Boolean))].sort();
    select.append(new Option("any", ""), ...values.map((value) => new Option(value, value)));
    return { index, select: add(title, select) };
  };
  const field = (type) => Object.assign(document.createElement("input"), { type });
  const count = document.createElement("output");

  function filter() {
    const most = parseFloat(size.value);
    let shown = 0;
    for (const row of rows) {
      const named = text(row, 0).toLowerCase().includes(name.value.trim().toLowerCase());
      const chosen = [family, license].every(({ index, select }) => !select.value || text(row, index) === select.value);
      const parameters = parseFloat(text(row, parametersColumn));
      row.hidden = !(named && chosen && (!Number.isFinite(most) || parameters <= most) && (!weights.checked || text(row, license.index)));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length}`;
  }

  const parametersColumn = column("parameters, M");
  const name = add("name", field("search"));
  const family = choices("family");
  const license = choices("license of the weights");
  const size = add("at most M parameters", Object.assign(field("number"), { min: "0" }));
  const weights = add("with weights", field("checkbox"));
  controls.append(count);
  filter();
  // Above the table, and outside the box that scrolls sideways.
  document.querySelector(".models").prepend(controls);
})();
