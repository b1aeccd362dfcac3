variable "project" {
  description = "Id of an existing project with billing. Everything below is made in it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project must be a project's id (not its name or number): 6 to 30 of a-z, 0-9 and -."
  }
}

variable "region" {
  description = "Where the bucket and the images are. Near the GPUs: a VM elsewhere pulls the image, several GB, from one region to another."
  type        = string
  default     = "us-central1"

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region as us-central1, not a zone or a multi-region."
  }
}

variable "bucket" {
  description = "The bucket's name, unique in the world; null: PROJECT-rooflaunch, which `launch gcp` looks for."
  type        = string
  default     = null

  validation {
    condition     = var.bucket == null || can(regex("^[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be 3 to 63 of a-z, 0-9, - and _, without gs://."
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

variable "soft_delete_days" {
  description = "For so long a deleted or overwritten object can be brought back (and is paid for); 0: not at all."
  type        = number
  default     = 7

  validation {
    condition     = var.soft_delete_days == 0 || (var.soft_delete_days >= 7 && var.soft_delete_days <= 90)
    error_message = "soft_delete_days must be 0, or 7 to 90: Cloud Storage takes no other."
  }
}

variable "delete_results_on_destroy" {
  description = "Let `terraform destroy` delete a bucket that still holds bundles."
  type        = bool
  default     = false
}

variable "repository" {
  description = "Name of the Artifact Registry repository for the images."
  type        = string
  default     = "rooflaunch"

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", var.repository))
    error_message = "repository must be 1 to 63 of a-z, 0-9 and -, and start with a letter."
  }
}

variable "images_delete_after_days" {
  description = "Images older than this are deleted, but for the newest `images_keep`. A bundle still names its digest."
  type        = number
  default     = 60

  validation {
    condition     = var.images_delete_after_days >= 1 && floor(var.images_delete_after_days) == var.images_delete_after_days
    error_message = "images_delete_after_days must be a whole number, 1 or more."
  }
}

variable "images_keep" {
  description = "So many of the newest images are kept at any age."
  type        = number
  default     = 6

  validation {
    condition     = var.images_keep >= 1 && floor(var.images_keep) == var.images_keep
    error_message = "images_keep must be a whole number, 1 or more."
  }
}

variable "launchers" {
  description = "Who else may run `launch gcp`, as user:you@example.com or group:lab@example.com. A project's owner needs no entry."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for who in var.launchers : can(regex("^(user|group|serviceAccount):[^@\\s]+@[^@\\s]+$", who))])
    error_message = "launchers must be user:…, group:… or serviceAccount:… with an address; nobody is let in without a name."
  }
}

variable "role_suffix" {
  description = "Letters and digits at the end of the ids of our roles: Google keeps the id of a deleted role for 37 days."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[A-Za-z0-9]{0,16}$", var.role_suffix))
    error_message = "role_suffix must be up to 16 letters and digits."
  }
}

variable "guest_logging" {
  description = "Let the VMs write to Cloud Logging. Not needed: the start-up log goes to the bucket, the serial port is kept anyway."
  type        = bool
  default     = false
}

variable "use_batch" {
  description = "For `launch batch`: enable Google Cloud Batch, let its agent on the VMs report, and let launchers edit jobs."
  type        = bool
  default     = false
}

variable "create_network" {
  description = "A network of its own, in which VMs need no external address (`launch gcp --no-external-ip`); false: the project's default network."
  type        = bool
  default     = false
}

variable "subnets" {
  description = "With create_network: address range by region. One for each region where you want GPUs."
  type        = map(string)
  default     = { us-central1 = "10.77.0.0/22" }

  validation {
    condition     = length(var.subnets) > 0 && alltrue([for range in values(var.subnets) : can(cidrhost(range, 0))])
    error_message = "subnets must have a range as 10.77.0.0/22 for at least one region."
  }
}

variable "iap_ssh" {
  description = "With create_network: let SSH in from Identity-Aware Proxy, to look into a VM. Nothing else gets in."
  type        = bool
  default     = false
}

variable "billing_account" {
  description = "Account for a budget that sends mail, as 012345-6789AB-CDEF01; null: no budget. It stops nothing."
  type        = string
  default     = null

  validation {
    condition     = var.billing_account == null || can(regex("^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$", var.billing_account))
    error_message = "billing_account must be as 012345-6789AB-CDEF01: gcloud billing accounts list."
  }
}

variable "budget_per_month" {
  description = "With billing_account: whole units of the account's currency per month; mail at 50, 90 and 100 %."
  type        = number
  default     = null

  validation {
    condition     = var.billing_account == null || try(var.budget_per_month >= 1 && floor(var.budget_per_month) == var.budget_per_month, false)
    error_message = "budget_per_month must be a whole number, 1 or more, where billing_account is given."
  }
}
