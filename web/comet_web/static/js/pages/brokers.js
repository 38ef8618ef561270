// The page of all brokers: spreads leaders evenly.

import { on } from "../actions.js";
import { follow, moveLeaders, stopLeaders } from "../leaders.js";

export function start() {
  const job = document.querySelector("[data-job]");
  on("spread-leaders", async () => {
    const begun = await moveLeaders({
      title: "Spread leaders over all brokers",
      note: "Gives each broker about the same number of leaders, a few partitions at a time. No data is copied, and it can be stopped.",
      action: "Spread leaders",
      partitions: null,
    });
    if (begun?.changes) follow(job, true);
  });
  on("stop-leaders", stopLeaders);
  follow(job);
}
