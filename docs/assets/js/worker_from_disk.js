// Search in a page opened from disk. Browsers start no worker for file:// addresses, so there the search
// worker runs in a hidden frame that looks like one: it receives messages, posts them, imports scripts.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget { // the theme's search asks for this name
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.tabIndex = -1
      document.body.append(frame)
      const inside = frame.contentWindow
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script")
          Object.assign(script, { src: source, onload: resolve, onerror: reject })
          inside.document.body.append(script)
        })
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = async (...sources) => {
        for (const source of sources) await load(source)
      }
      const ready = load(address)
      this.postMessage = async (data) => {
        await ready
        inside.dispatchEvent(new MessageEvent("message", { data }))
      }
    }
    terminate() {}
  }
  window.Worker = window.IFrameWorker
}
