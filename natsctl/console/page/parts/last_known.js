/** Dims a view that could not be loaded again, and shows how old its values are. */

import { h, replace } from "../dom.js";
import { age } from "../format.js";

/** A line above a view; empty while the view shows what is known now. */
export class LastKnown {
  /** @param {HTMLElement} view */
  constructor(view) {
    this.element = h("p", { class: "last-known", hidden: true });
    this._view = view;
    this._asOf = 0;
    this._why = { failed: false, cut: false };
  }

  /** @param {{as_of: number}} answer */
  answered({ as_of }) {
    this._asOf = as_of;
    this.update({ failed: false });
  }

  /** @param {{failed?: boolean, cut?: boolean}} why the last load failed, the connection is cut */
  update(why) {
    this._why = { ...this._why, ...why };
    const isOld = this._asOf > 0 && (this._why.failed || this._why.cut);
    this._view.classList.toggle("old", isOld);
    this.element.hidden = !isOld;
    const time = new Date(this._asOf * 1000).toISOString();
    if (isOld && this._time !== time) replace(this.element, "The last known values, from ", age(time));
    this._time = isOld ? time : "";
  }
}
