//! The servers that can be imitated: their routes, and what these do.

use crate::Fault;
use crate::http::{Answer, Request};
use crate::model::Model;
use anyhow::Result;
use clap::ValueEnum;
use std::time::Duration;

/// ComfyUI's worker looks at its flags when it comes round; llama.cpp's router waits for a child's end.
const LATER: Duration = Duration::from_millis(200);

/// A server of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Like {
    /// `/sleep`, `/wake_up`, `/is_sleeping`
    Vllm,
    /// `/api/generate` with and without `keep_alive`, `/api/ps`
    Ollama,
    /// `/free`, `/prompt`, `/system_stats`
    Comfyui,
    /// `/models/load`, `/models/unload`, `/models`
    LlamaCpp,
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The card's memory shall be given back.
    Leave,
    /// It shall be taken again.
    ComeBack,
    /// The model shall work, and is taken again for it where the server does that by itself.
    Work,
    /// How it is.
    State,
    /// Something that the server does not have.
    Nothing,
}

impl Like {
    /// What a request wants of such a server.
    pub fn wants(self, request: &Request) -> Wants {
        let unloads = request.body.contains("\"keep_alive\":0");
        let prompts = request.body.contains("\"prompt\":");
        match (self, request.method.as_str(), request.path.as_str()) {
            (Like::Vllm, "POST", "/sleep") | (Like::LlamaCpp, "POST", "/models/unload") => Wants::Leave,
            (Like::Ollama, "POST", "/api/generate") if unloads => Wants::Leave,
            (Like::Comfyui, "POST", "/free") if request.body.contains("\"unload_models\":true") => Wants::Leave,
            (Like::Vllm, "POST", "/wake_up") | (Like::LlamaCpp, "POST", "/models/load") => Wants::ComeBack,
            (Like::Ollama, "POST", "/api/generate") if !prompts => Wants::ComeBack,
            (Like::Ollama, "POST", "/api/generate") | (Like::Comfyui, "POST", "/prompt") => Wants::Work,
            (Like::Vllm | Like::LlamaCpp, "POST", "/v1/completions") => Wants::Work,
            (Like::Vllm, "GET", "/is_sleeping") | (Like::Ollama, "GET", "/api/ps") => Wants::State,
            (Like::Comfyui, "GET", "/system_stats") | (Like::LlamaCpp, "GET", "/models") => Wants::State,
            _ => Wants::Nothing,
        }
    }

    /// Its memory is given back after the answer.
    fn answers_first(self) -> bool {
        matches!(self, Like::Comfyui | Like::LlamaCpp)
    }

    /// What leaves the card stays in host memory.
    pub fn keeps(self) -> bool {
        self == Like::Vllm
    }

    /// Serves it.
    pub fn serve(self, request: &Request, wants: Wants, model: &mut Model, fault: Option<Fault>) -> Result<Answer> {
        Ok(match wants {
            Wants::Leave if self.answers_first() => {
                Answer { later: Some(LATER), ..Answer::new(200, "{\"success\":true}") }
            }
            Wants::Leave => {
                // Level 2 forgets the weights too.
                model.leave(fault, self.keeps() && !request.query.contains("level=2"))?;
                Answer::new(200, "{\"done_reason\":\"unload\"}")
            }
            Wants::ComeBack => match model.come_back() {
                Ok(()) => Answer::new(200, "{\"success\":true}"),
                Err(error) => Answer::new(500, format!("{{\"error\":\"{error:#}\"}}")),
            },
            // It does not wake by itself.
            Wants::Work if self == Like::Vllm && !model.is_here() => Answer::new(503, "{\"error\":\"asleep\"}"),
            Wants::Work => match model.come_back() {
                Ok(()) => {
                    model.verify()?;
                    Answer::new(200, "{\"response\":\"42\"}")
                }
                Err(error) => Answer::new(500, format!("{{\"error\":\"{error:#}\"}}")),
            },
            Wants::State => Answer::new(200, self.state(model)),
            Wants::Nothing => Answer::new(404, "{}"),
        })
    }

    fn state(self, model: &Model) -> String {
        let (here, bytes) = (model.is_here(), model.on_card());
        match self {
            Like::Vllm => format!("{{\"is_sleeping\":{}}}", !here),
            Like::Ollama if bytes == 0 => "{\"models\":[]}".to_owned(),
            Like::Ollama => format!("{{\"models\":[{{\"name\":\"m\",\"size_vram\":{bytes}}}]}}"),
            Like::Comfyui => format!("{{\"devices\":[{{\"torch_vram_total\":{bytes}}}]}}"),
            Like::LlamaCpp => {
                let value = if here { "loaded" } else { "unloaded" };
                format!("{{\"data\":[{{\"id\":\"m\",\"status\":{{\"value\":\"{value}\"}}}}]}}")
            }
        }
    }
}
