"""Serves a tensor over HTTP: `GET /health` answers without the GPU, `POST /sum` sums the tensor on it."""

import http.server
import sys

import torch

gib, port = float(sys.argv[1]), int(sys.argv[2])
tensor = torch.ones(int(gib * (1 << 30)) // 4, dtype=torch.float32, device="cuda")
torch.cuda.synchronize()


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, text):
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        self.answer("ok")

    def do_POST(self):
        total = sum(piece.sum(dtype=torch.float64) for piece in tensor.split(1 << 26))
        self.answer(f"sum {int(total)} of {tensor.numel()}")

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
print(f"holds {gib:g} GiB", flush=True)
server.serve_forever()
