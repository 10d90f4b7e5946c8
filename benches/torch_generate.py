#!/usr/bin/env python3
"""Generates tokens with transformers' GPT2LMHeadModel and prints one JSON line: seconds, and the tokens.

    python benches/torch_generate.py --save MODEL                   # writes a random GPT-2 124M
    python benches/torch_generate.py MODEL --tokens 200 --threads 2
    python benches/torch_generate.py MODEL --tokens 200 --greedy
"""

import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory")
    parser.add_argument("--save", action="store_true", help="write a model with random weights there")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, nargs="+", default=[15496, 11], help="token ids")
    parser.add_argument("--greedy", action="store_true", help="the most likely token always")
    return parser.parse_args()


def main():
    args = arguments()
    torch.manual_seed(1337)
    if args.save:
        # larger than GPT-2's initial weights: the logits of those are nearly equal
        GPT2LMHeadModel(GPT2Config(initializer_range=0.06)).save_pretrained(args.model)
        return
    torch.set_num_threads(args.threads)
    model = GPT2LMHeadModel.from_pretrained(args.model).eval()
    prompt = torch.tensor([args.prompt])
    options = {"do_sample": False} if args.greedy else {"do_sample": True, "temperature": 0.8, "top_k": 50}
    # no token ends the text early
    options |= {"eos_token_id": None, "pad_token_id": 0, "use_cache": True}
    options |= {"attention_mask": torch.ones_like(prompt)}
    with torch.inference_mode():
        model.generate(prompt, max_new_tokens=4, **options)
        start = time.perf_counter()
        tokens = model.generate(prompt, max_new_tokens=args.tokens, **options)
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "tokens": tokens[0, len(args.prompt) :].tolist()}))


if __name__ == "__main__":
    main()
