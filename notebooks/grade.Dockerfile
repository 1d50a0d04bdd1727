# Grades a class, see docs/instructors.md.
FROM python:3.13-slim
COPY . /refopt
RUN pip install --no-cache-dir -e "/refopt[notebooks]"
ENTRYPOINT ["python", "-m", "refopt_exercises", "grade"]
