variable "region" {
  description = "The region of bucket, images and VMs."
  type        = string
  default     = "us-east-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+){1,2}-[0-9]$", var.region))
    error_message = "region must be a region as us-east-1, not a zone."
  }
}

variable "bucket" {
  description = "The bucket's name, unique in the world; null: rooflaunch-ACCOUNT-REGION, which `launch aws` looks for."
  type        = string
  default     = null

  validation {
    condition     = var.bucket == null || can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be 3 to 63 of a-z, 0-9 and -, without s3://."
  }
}

variable "launches_delete_after_days" {
  description = "Records of launches (request, heartbeat, start-up log) are deleted at this age. Bundles are not."
  type        = number
  default     = 90

  validation {
    condition     = var.launches_delete_after_days >= 1 && floor(var.launches_delete_after_days) == var.launches_delete_after_days
    error_message = "launches_delete_after_days must be a whole number, 1 or more."
  }
}

variable "runs_delete_after_days" {
  description = "Bundles are deleted from the bucket at this age; null: never."
  type        = number
  default     = null

  validation {
    condition     = var.runs_delete_after_days == null || try(var.runs_delete_after_days >= 1 && floor(var.runs_delete_after_days) == var.runs_delete_after_days, false)
    error_message = "runs_delete_after_days must be a whole number, 1 or more, or null."
  }
}

variable "older_versions_days" {
  description = "For so long a deleted or overwritten object can be brought back (and is paid for)."
  type        = number
  default     = 7

  validation {
    condition     = var.older_versions_days >= 1 && floor(var.older_versions_days) == var.older_versions_days
    error_message = "older_versions_days must be a whole number, 1 or more."
  }
}

variable "delete_results_on_destroy" {
  description = "Let `terraform destroy` delete a bucket that still holds bundles."
  type        = bool
  default     = false
}

variable "repository" {
  description = "Name of the ECR repository for the images."
  type        = string
  default     = "rooflaunch/trainer"

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9._/-]{1,199}$", var.repository))
    error_message = "repository must be a name as rooflaunch/trainer, without a host and a tag."
  }
}

variable "images_keep" {
  description = "So many of the newest images are kept. A bundle still names the digest of a deleted one."
  type        = number
  default     = 6

  validation {
    condition     = var.images_keep >= 1 && floor(var.images_keep) == var.images_keep
    error_message = "images_keep must be a whole number, 1 or more."
  }
}

variable "launchers" {
  description = "Names of IAM users who may run `launch aws`. An administrator needs no entry."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for who in var.launchers : can(regex("^[A-Za-z0-9+=,.@_-]{1,64}$", who))])
    error_message = "launchers must be names of IAM users, not ARNs."
  }
}

variable "vpc" {
  description = "Network of the security group, as vpc-0123456789abcdef0; null: the region's default VPC."
  type        = string
  default     = null

  validation {
    condition     = var.vpc == null || can(regex("^vpc-[0-9a-f]{8,17}$", var.vpc))
    error_message = "vpc must be as vpc-0123456789abcdef0."
  }
}

variable "budget_email" {
  description = "Address for mail about the account's costs; null: no budget. It stops nothing."
  type        = string
  default     = null

  validation {
    condition     = var.budget_email == null || can(regex("^[^@\\s]+@[^@\\s]+$", var.budget_email))
    error_message = "budget_email must be an address as you@example.com."
  }
}

variable "budget_usd_per_month" {
  description = "With budget_email: USD per month; mail at 50, 90 and 100 %."
  type        = number
  default     = 20

  validation {
    condition     = var.budget_usd_per_month >= 1 && floor(var.budget_usd_per_month) == var.budget_usd_per_month
    error_message = "budget_usd_per_month must be a whole number, 1 or more."
  }
}
