/* The search of pages that are opened as files, which browsers let start no worker: the worker's
   script runs in a hidden frame instead. Used in place of the package of this name, so that nothing
   is fetched (see mkdocs.yml). */
if (location.protocol === "file:") {
  const waiting = new Map();  // messages for workers whose script isn't there yet, by their frame

  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      waiting.set(this.frame, []);
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        const early = waiting.get(this.frame);
        waiting.delete(this.frame);
        early.forEach((data) => this.postMessage(data));
      };
      inside.document.head.append(script);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      if (waiting.has(this.frame)) waiting.get(this.frame).push(data);
      else inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
