// Downloads, as the server tells of them.

export interface DownloadFile {
  name: string;
  bytes: number;
  total: number;
  state: string;
}

export interface Download {
  id: string;
  repo: string;
  revision: string;
  state: "queued" | "checking" | "downloading" | "verifying" | "paused" | "done" | "failed" | "cancelled";
  bytes: number;
  total: number;
  /** Bytes per second. */
  speed: number;
  remaining_s: number | null;
  files: DownloadFile[];
  message: string | null;
  path: string | null;
}
