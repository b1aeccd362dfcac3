terraform {
  # 1.9: a variable's validation may name another variable.
  required_version = ">= 1.9, < 2.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.0, < 7.0"
    }
  }
}

# Credentials come from the environment (aws sso login, or aws configure), never from here.
provider "aws" {
  region = var.region

  default_tags {
    tags = { rooflaunch = "infra" }
  }
}

data "aws_caller_identity" "this" {}

data "aws_partition" "this" {}

locals {
  account   = data.aws_caller_identity.this.account_id
  partition = data.aws_partition.this.partition
  ec2       = "arn:${local.partition}:ec2:${var.region}:${local.account}"
  # Tag that `launch aws` gives to everything that it makes, and with it the only instances that anybody here may end.
  tag = "rooflaunch"
}
