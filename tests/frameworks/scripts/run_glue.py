"""As run_glue.py of transformers: options of TrainingArguments beside its own, Trainer, padded batches."""

from dataclasses import dataclass, field

import torch
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, HfArgumentParser
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments


@dataclass
class Arguments:
    model_name_or_path: str = field()
    train_file: str = field()
    max_seq_length: int = field(default=128)


own, training = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()
generator = torch.Generator().manual_seed(0)
rows = []
for index in range(320):
    length = int(torch.randint(8, min(own.max_seq_length, 40), (1,), generator=generator))
    rows.append({"input_ids": torch.randint(3, 63, (length,), generator=generator).tolist(), "label": index % 2})
tokenizer = PreTrainedTokenizerFast.from_pretrained(own.model_name_or_path)
model = AutoModelForSequenceClassification.from_pretrained(own.model_name_or_path, num_labels=2)
Trainer(model=model, args=training, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer)).train()
