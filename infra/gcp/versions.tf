terraform {
  # 1.9: a variable's validation may name another variable.
  required_version = ">= 1.9, < 2.0"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.50, < 8.0"
    }
  }
}

# Credentials come from the environment (gcloud auth application-default login), never from here.
provider "google" {
  project = var.project
  region  = var.region
}

# The budget's service wants to know which project asks; the others may not be enabled there yet.
provider "google" {
  alias                 = "budget"
  project               = var.project
  billing_project       = var.project
  user_project_override = true
}
