// Decides what each shop needs: a page for every copy that it wants.
//
//   npm install && node hook.js
//   natsctl run --hook shops.sync --primary shops --secondary pages
//   natsctl put shops corner '{"spec": {"copies": 2, "text": "hi"}}'

import { connect } from "@nats-io/transport-node";

function decide({ key, object }) {
  const { copies = 1, text = "hi" } = object.spec;
  if (copies > 100) {
    return { error: `${copies} copies are too many`, permanent: true };
  }
  const pages = {};
  for (let copy = 0; copy < copies; copy++) {
    pages[`${key}.${copy}`] = { spec: { text: text.toUpperCase() } };
  }
  return { children: { pages }, status: { ready: true, pages: copies } };
}

const nc = await connect({ servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222" });
nc.subscribe("shops.sync", {
  queue: "shops", // start it several times: the requests are shared
  callback: (error, message) => {
    if (error) throw error;
    let answer;
    try {
      answer = decide(message.json());
    } catch (failure) {
      answer = { error: String(failure) }; // natsctl retries the key
    }
    message.respond(JSON.stringify(answer));
  },
});
await nc.flush();
console.log("deciding about shops");
await nc.closed();
