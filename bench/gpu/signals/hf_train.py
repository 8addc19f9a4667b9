"""A Trainer on a tiny random model, stopped as docs/recipes/hf-trainer.md says: hf_train.py FOLDER."""
import os
import sys

import torch
from notice import SaveOnNotice
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Say(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        print(f"training pid={os.getpid()}", flush=True)


class Random(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        tokens = torch.randint(0, 256, (64,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))
args = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=16,
    max_steps=50_000_000,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    logging_strategy="no",
)
notice = SaveOnNotice()
trainer = Trainer(model=model, args=args, train_dataset=Random(), callbacks=[notice, Say()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))
if notice.stopped:
    print(f"stopped at step {trainer.state.global_step}", flush=True)
    sys.exit(75)
print("nothing came", flush=True)
