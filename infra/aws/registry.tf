resource "aws_ecr_repository" "images" {
  name         = var.repository
  force_delete = true

  encryption_configuration {
    encryption_type = "AES256"
  }
}

# A bundle still names the digest of a deleted image.
resource "aws_ecr_lifecycle_policy" "images" {
  repository = aws_ecr_repository.images.name

  policy = jsonencode({
    rules = [{
      rulePriority = 1
      description  = "keep the newest images"
      selection = {
        tagStatus   = "any"
        countType   = "imageCountMoreThan"
        countNumber = var.images_keep
      }
      action = { type = "expire" }
    }]
  })
}
