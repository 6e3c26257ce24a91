// Browsers start no worker on a page that was opened as a file. The site's search then gets one that lives in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    onmessage = null;
    onerror = null;
    onmessageerror = null;
    #frame = document.createElement("iframe");
    #waiting = [];

    constructor(address) {
      super();
      this.#frame.hidden = true;
      document.documentElement.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.#hand(data));
      const script = inside.document.createElement("script");
      script.src = String(address);
      script.onload = () => {
        for (const data of this.#waiting) this.#deliver(data);
        this.#waiting = null;
      };
      script.onerror = () => this.onerror?.(new ErrorEvent("error", { message: `${address} cannot be read` }));
      inside.document.head.append(script);
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data);
      else this.#deliver(data);
    }

    terminate() {
      this.#frame.remove();
    }

    #deliver(data) {
      const inside = this.#frame.contentWindow;
      setTimeout(() => inside?.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    #hand(data) {
      const event = new MessageEvent("message", { data });
      this.onmessage?.(event);
      this.dispatchEvent(event);
    }
  };
}
