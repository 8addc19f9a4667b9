//! The servers that can be imitated: their routes, and what these do.

use crate::ServerFault;
use crate::http::{ModelAnswer, ModelRequest};
use crate::model::Model;
use anyhow::Result;
use clap::ValueEnum;
use std::time::Duration;

/// ComfyUI's worker looks at its flags when it comes round; llama.cpp's router waits for a child's end.
const FREE_DELAY: Duration = Duration::from_millis(200);

/// A server of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImitatedServer {
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
pub enum RequestedAction {
    /// The GPU's memory shall be given back.
    Unload,
    /// It shall be taken again.
    Load,
    /// The model shall work, and is taken again for it where the server does that by itself.
    Work,
    /// How it is.
    State,
    /// Something that the server does not have.
    Nothing,
}

impl ImitatedServer {
    /// What a request wants of such a server.
    pub fn requested_action(self, request: &ModelRequest) -> RequestedAction {
        let unloads = request.body.contains("\"keep_alive\":0");
        let prompts = request.body.contains("\"prompt\":");
        match (self, request.method.as_str(), request.path.as_str()) {
            (ImitatedServer::Vllm, "POST", "/sleep") | (ImitatedServer::LlamaCpp, "POST", "/models/unload") => {
                RequestedAction::Unload
            }
            (ImitatedServer::Ollama, "POST", "/api/generate") if unloads => RequestedAction::Unload,
            (ImitatedServer::Comfyui, "POST", "/free") if request.body.contains("\"unload_models\":true") => {
                RequestedAction::Unload
            }
            (ImitatedServer::Vllm, "POST", "/wake_up") | (ImitatedServer::LlamaCpp, "POST", "/models/load") => {
                RequestedAction::Load
            }
            (ImitatedServer::Ollama, "POST", "/api/generate") if !prompts => RequestedAction::Load,
            (ImitatedServer::Ollama, "POST", "/api/generate") | (ImitatedServer::Comfyui, "POST", "/prompt") => {
                RequestedAction::Work
            }
            (ImitatedServer::Vllm | ImitatedServer::LlamaCpp, "POST", "/v1/completions") => RequestedAction::Work,
            (ImitatedServer::Vllm, "GET", "/is_sleeping") | (ImitatedServer::Ollama, "GET", "/api/ps") => {
                RequestedAction::State
            }
            (ImitatedServer::Comfyui, "GET", "/system_stats") | (ImitatedServer::LlamaCpp, "GET", "/models") => {
                RequestedAction::State
            }
            _ => RequestedAction::Nothing,
        }
    }

    /// Its memory is given back after the answer.
    fn answers_first(self) -> bool {
        matches!(self, ImitatedServer::Comfyui | ImitatedServer::LlamaCpp)
    }

    /// What leaves the GPU stays in host memory.
    pub fn keeps_in_host_memory(self) -> bool {
        self == ImitatedServer::Vllm
    }

    /// Serves it.
    pub fn serve(
        self,
        request: &ModelRequest,
        requested_action: RequestedAction,
        model: &mut Model,
        fault: Option<ServerFault>,
    ) -> Result<ModelAnswer> {
        Ok(match requested_action {
            RequestedAction::Unload if self.answers_first() => {
                ModelAnswer { free_delay: Some(FREE_DELAY), ..ModelAnswer::new(200, "{\"success\":true}") }
            }
            RequestedAction::Unload => {
                // Level 2 forgets the weights too.
                model.unload(fault, self.keeps_in_host_memory() && !request.query.contains("level=2"))?;
                ModelAnswer::new(200, "{\"done_reason\":\"unload\"}")
            }
            RequestedAction::Load => match model.reload() {
                Ok(()) => ModelAnswer::new(200, "{\"success\":true}"),
                Err(error) => ModelAnswer::new(500, format!("{{\"error\":\"{error:#}\"}}")),
            },
            // It does not wake by itself.
            RequestedAction::Work if self == ImitatedServer::Vllm && !model.is_loaded() => {
                ModelAnswer::new(503, "{\"error\":\"asleep\"}")
            }
            RequestedAction::Work => match model.reload() {
                Ok(()) => {
                    model.verify()?;
                    ModelAnswer::new(200, "{\"response\":\"42\"}")
                }
                Err(error) => ModelAnswer::new(500, format!("{{\"error\":\"{error:#}\"}}")),
            },
            RequestedAction::State => ModelAnswer::new(200, self.state(model)),
            RequestedAction::Nothing => ModelAnswer::new(404, "{}"),
        })
    }

    fn state(self, model: &Model) -> String {
        let (here, bytes) = (model.is_loaded(), model.bytes_on_gpu());
        match self {
            ImitatedServer::Vllm => format!("{{\"is_sleeping\":{}}}", !here),
            ImitatedServer::Ollama if bytes == 0 => "{\"models\":[]}".to_owned(),
            ImitatedServer::Ollama => format!("{{\"models\":[{{\"name\":\"m\",\"size_vram\":{bytes}}}]}}"),
            ImitatedServer::Comfyui => format!("{{\"devices\":[{{\"torch_vram_total\":{bytes}}}]}}"),
            ImitatedServer::LlamaCpp => {
                let value = if here { "loaded" } else { "unloaded" };
                format!("{{\"data\":[{{\"id\":\"m\",\"status\":{{\"value\":\"{value}\"}}}}]}}")
            }
        }
    }
}
