/* Search in pages that are opened as files, for which browsers don't start workers: the worker's
   script runs in a hidden frame instead. Replaces the package of this name, which would be
   downloaded (see mkdocs.yml). */
if (location.protocol === "file:") {
  const waiting = new Map();  // messages for workers whose script isn't loaded yet, by frame

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
